"""`comln-train`: wrap, fit, report, export, evaluate, calibrate, study."""

import argparse
import sys

from comln_serve.bundle import BundleError
from comln_serve.errors import StartupError
from comln_serve.flow import FlowError
from training.backbones import BackboneError
from training.bundles.backbone_graph import ExportError
from training.checkpoint import CheckpointError
from training.commands.calibrate import add_calibrate
from training.commands.evaluate import add_evaluate
from training.commands.export import add_export
from training.commands.fit import add_fit, add_report
from training.commands.study import add_study
from training.commands.wrap import add_wrap
from training.config import ConfigError
from training.data import DataError

_CORRECTABLE = (
    BackboneError,
    BundleError,
    CheckpointError,
    ConfigError,
    DataError,
    ExportError,
    FlowError,
    OSError,
    StartupError,
)


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status (2: something the caller can correct)."""
    parser = argparse.ArgumentParser(prog="comln-train", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (add_wrap, add_fit, add_report, add_export, add_evaluate, add_calibrate, add_study):
        add(commands)
    args = parser.parse_args(argv)
    try:
        status: int = args.run(args)
    except _CORRECTABLE as error:
        print(f"comln-train: {error}", file=sys.stderr)
        return 2
    return status
