"""`comln-train`: from networks and images to bundles."""

import argparse
import importlib
import re
import sys
from typing import Any, NoReturn

from comln_serve import __version__
from comln_serve.bundle import BundleError
from comln_serve.errors import StartupError
from comln_serve.flow import FlowError
from comln_serve.streams import write_utf8
from training.config import ConfigError
from training.errors import CorrectableError

_CORRECTABLE = (CorrectableError, ConfigError, BundleError, FlowError, OSError, StartupError)

# Each is imported when it is asked for, and torch only where a command needs it: `wrap`, and measuring bundles, do not.
_COMMANDS = {
    "wrap": "make a bundle from any ONNX model, without data or training",
    "fit": "meta-train a model from a recipe",
    "report": "write a run's report.html (fit also writes it when it ends)",
    "export": "make a bundle from a run's best checkpoint",
    "evaluate": "measure a bundle or a run on episodes",
    "calibrate": "fit temperature and threshold of unknown, measure them, record them in the bundle",
    "study": "measure a bundle with other solvers and other horizons",
}


class _Parser(argparse.ArgumentParser):
    """Says in errors how lists of numbers are given."""

    def error(self, message: str) -> NoReturn:
        if found := re.fullmatch("argument (--[a-z-]+).*: expected one argument", message):
            message += f"; to give a negative value, write {found[1]}=-VALUE"
        elif found := re.fullmatch("unrecognized arguments: ([0-9. -]+)", message):
            message += f"; the numbers of one option are separated by commas alone, as in {','.join(found[1].split())}"
        super().error(message)


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status (2: something the caller can correct)."""
    write_utf8()
    given = sys.argv[1:] if argv is None else argv
    parser = _Parser(prog="comln-train", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    try:
        for name, text in _COMMANDS.items():
            command = commands.add_parser(name, help=text, description=text)
            if given[:1] == [name]:
                module: Any = importlib.import_module(f"training.commands.{name}")
                module.add_arguments(command)
                command.set_defaults(run=module.run)
        args = parser.parse_args(given)
        args.run(args)
    except _CORRECTABLE as error:
        print(f"comln-train: {error}", file=sys.stderr)
        return 2
    return 0
