"""Options that several commands share, and the types of their values."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from training.config import ConfigError


def add_repeatable(
    command: argparse.ArgumentParser,
    option: str,
    values: str,
    metavar: str,
    help_text: str,
    kind: Callable[[str], object] = str,
) -> None:
    """An option that may be given several times; `values` of the arguments is the list of what was given."""
    command.add_argument(option, type=kind, action="append", default=[], metavar=metavar, dest=values, help=help_text)


def add_overrides(command: argparse.ArgumentParser, help_text: str) -> None:
    """`--set KEY=VALUE`, repeatable, as `overrides`."""
    add_repeatable(command, "--set", "overrides", "KEY=VALUE", help_text)


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option that takes an integer from `least` on."""

    def number(text: str) -> int:
        if not (text.isdecimal() and int(text) >= least):
            raise argparse.ArgumentTypeError(f"expected a number of at least {least}, got {text!r}")
        return int(text)

    return number


def positive(text: str) -> float:
    """The type of an option that takes a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number > 0, got {text!r}")
    return value


def check_out(path: Path) -> None:
    """Refuse a folder for `--out` that cannot be made, before anything is measured for it."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise ConfigError(f"--out needs the folder {path}, but {there} is a file; name another")
