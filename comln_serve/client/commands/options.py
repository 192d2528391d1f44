"""Arguments and options of more than one command."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from comln_serve.client.arguments import Horizon
from comln_serve.client.errors import InputError
from comln_serve.client.folders import existing_folder, read_folder
from comln_serve.client.images import Source, name_of
from comln_serve.client.results import Skipped


class _Images(click.Path):
    """Paths, and "-" for an image on standard input, which stays a text: `./-`, a file, is the same path as "-"."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "-" else super().convert(value, param, ctx)


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


def images_of(paths: Sequence[Path | str], on_bad: str) -> tuple[list[Source], list[Skipped]]:
    """The images of arguments: files, an image on standard input, and all images in folders and the folders in them;
    and the files in folders that are no images. Raises InputError for these if `on_bad` is "raise", for a folder
    without an image, and for standard input that is empty or given twice.
    """
    if paths.count("-") > 1:
        raise InputError("- is given twice; standard input is one image")
    images: list[Source] = []
    skipped: list[Skipped] = []
    for path in paths:
        if isinstance(path, str):
            images.append(_standard_input())
        elif path.is_dir():
            inside, others = read_folder(path)
            images += inside
            skipped += others
        else:
            images.append(Source(name_of(path), path))
    if skipped and on_bad == "raise":
        raise InputError(f"{skipped[0].image} {skipped[0].reason}; remove it, or --on-bad skip")
    return images, skipped


def _standard_input() -> Source:
    what = "- is an image on standard input, which is"
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError(f"{what} a terminal or closed; redirect a file to it: < FILE")
    data = sys.stdin.buffer.read()
    if not data:
        raise InputError(f"{what} empty; redirect a file to it: < FILE")
    return Source("-", data)
