"""The images that a command is given by files and folders."""

from collections.abc import Sequence
from pathlib import Path

from comln_serve.client.errors import InputError
from comln_serve.client.folders import read_folder
from comln_serve.client.results import Skipped


def images_of(paths: Sequence[Path], on_bad: str) -> tuple[list[Path], list[Skipped]]:
    """Files, and all images of folders and of the folders in them; and the files of these that were left out.

    Args:
        on_bad: "raise" to leave none out.

    Raises:
        InputError: a folder has no image, or a file that is none and may not be left out.
    """
    files: list[Path] = []
    skipped: list[Skipped] = []
    for path in paths:
        if path.is_dir():
            inside, others = read_folder(path)
            files += inside
            skipped += others
        else:
            files.append(path)
    if skipped and on_bad == "raise":
        raise InputError(f"{skipped[0].image} {skipped[0].reason}; remove it, or --on-bad skip")
    return files, skipped
