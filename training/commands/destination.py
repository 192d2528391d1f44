"""The folder that a command writes a bundle to: its options, and what they must not name."""

import argparse
from pathlib import Path

from comln_serve.bundle.manifest import MANIFEST
from training.bundles.writer import check_destination
from training.config import ConfigError


def add_to(command: argparse.ArgumentParser) -> None:
    """`--to FOLDER`, of the bundle that is written, and `--replace`."""
    command.add_argument("--to", type=Path, required=True, help="folder of the bundle; its name is the model's")
    command.add_argument(
        "--replace", action="store_true", help="replace a bundle that is there, with all that was measured on it"
    )


def check_to(args: argparse.Namespace) -> None:
    """Refuse a folder that `--to` must not write to, before anything is computed for it."""
    check_destination(args.to)
    if (args.to / MANIFEST).exists() and not args.replace:
        raise ConfigError(
            f"{args.to} is a bundle already: --replace replaces it, with the accuracies and the calibration recorded "
            "in it; or choose another folder"
        )
