"""The images that a command is given by files and folders, and on standard input."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from comln_serve.client.errors import InputError
from comln_serve.client.folders import read_folder
from comln_serve.client.images import Named
from comln_serve.client.results import Skipped


@dataclass(frozen=True)
class StandardInput:
    """Stands for an image on standard input. No path does: `Path("./-")`, a file, equals `Path("-")`."""


class _Images(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return StandardInput() if value == "-" else super().convert(value, param, ctx)


IMAGES = _Images(exists=True, path_type=Path)
"""Type of the arguments that `images_of` takes."""


def images_of(paths: Sequence[Path | StandardInput], on_bad: str) -> tuple[list[Path | Named], list[Skipped]]:
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
    files: list[Path | Named] = []
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


def _standard_input() -> Named:
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError(
            "- is an image on standard input, which is a terminal or closed; redirect a file to it: < FILE"
        )
    data = sys.stdin.buffer.read()
    if not data:
        raise InputError("- is an image on standard input, which is empty; redirect a file to it: < FILE")
    return Named("-", data)
