"""Arguments and options of more than one command."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from comln_serve.client.errors import InputError
from comln_serve.client.folders import existing_folder, read_folder
from comln_serve.client.images import Source
from comln_serve.client.making import Horizon
from comln_serve.client.results import Skipped


@dataclass(frozen=True)
class StandardInput:
    """Stands for an image on standard input. No path does: `Path("./-")`, a file, equals `Path("-")`."""


class _Images(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return StandardInput() if value == "-" else super().convert(value, param, ctx)


IMAGES = _Images(exists=True, path_type=Path)
"""Type of the arguments that `images_of` takes."""


class _Folder(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return existing_folder(value)
        except InputError as error:
            self.fail(str(error), param, ctx)


FOLDER = _Folder(file_okay=False, path_type=Path)
ON_BAD = click.option(
    "--on-bad",
    type=click.Choice(["skip", "raise"]),
    default="skip",
    show_default=True,
    help="What to do about files that are no image or damaged.",
)
ALL_VIEWS = click.option(
    "--all-views",
    is_flag=True,
    help="Look at each image in all the views that the model takes of support images: somewhat more accurate, for as "
    "many times the work.",
)
PROMOTE = click.option(
    "--promote/--no-promote",
    default=True,
    show_default=True,
    help="Whether the name stands for the new version at once.",
)


def parse_horizon(text: str | None) -> Horizon:
    """Parse the value of `--horizon`. Raises InputError if it is neither a number over 0 nor learned or auto."""
    if text is None or text in ("learned", "auto"):
        return text
    if not re.fullmatch(r"\d*\.?\d+([eE][+-]?\d+)?", text):
        raise InputError(f"--horizon is {text!r}; give a number over 0, learned or auto")
    return float(text)


def parse_metadata(pairs: Sequence[str]) -> dict[str, str]:
    """Parse the values of `--metadata`. Raises InputError if one is not KEY=VALUE, or has the key of another."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise InputError(f"--metadata is {pair!r}; give KEY=VALUE")
        if key in found:
            raise InputError(f"--metadata has {key!r} twice, as {found[key]!r} and as {value!r}; give it once")
        found[key] = value
    return found


def images_of(paths: Sequence[Path | StandardInput], on_bad: str) -> tuple[list[Path | Source], list[Skipped]]:
    """The images of arguments: files, an image on standard input, and all images in folders and the folders in them.

    Args:
        on_bad: "skip" files in folders that are no images, or "raise".

    Returns:
        The images, and the skipped files.

    Raises:
        InputError: a folder has no image, or a file that may not be skipped; or standard input is empty or given twice.
    """
    if sum(isinstance(path, StandardInput) for path in paths) > 1:
        raise InputError("- is given twice; standard input is one image")
    files: list[Path | Source] = []
    skipped: list[Skipped] = []
    for path in paths:
        if isinstance(path, StandardInput):
            files.append(_standard_input())
        elif path.is_dir():
            inside, others = read_folder(path)
            files += inside
            skipped += others
        else:
            files.append(path)
    if skipped and on_bad == "raise":
        raise InputError(f"{skipped[0].image} {skipped[0].reason}; remove it, or --on-bad skip")
    return files, skipped


def _standard_input() -> Source:
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError(
            "- is an image on standard input, which is a terminal or closed; redirect a file to it: < FILE"
        )
    data = sys.stdin.buffer.read()
    if not data:
        raise InputError("- is an image on standard input, which is empty; redirect a file to it: < FILE")
    return Source("-", data)
