"""Copies of classified files in a folder for each class, which `comln predict --copy-to` makes."""

import filecmp
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import cast

from comln_serve.client.errors import InputError
from comln_serve.client.images import Source
from comln_serve.client.results import Predictions

_UNKNOWN = "unknown"
_MOST_BYTES = 255  # of a file's name, on most file systems
# What a folder's name cannot have or mean, on one system or another: separators and control characters, a dot or blank
# at an end, names of devices; and what looks like a character written as %2F.
_NOT_IN_NAMES = re.compile(
    r'[\x00-\x1f\x7f/\\:*?"<>|]|^[. ]|[. ]+$|^(?=(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)).|%(?=[0-9a-f]{2})',
    re.IGNORECASE,
)


def folder_of(label: str) -> str:
    """Name of the folder of a class: its label, in which characters that no name can have are written as in addresses
    (fruit/apple: fruit%2Fapple). Raises InputError if it is too long.
    """
    name = _NOT_IN_NAMES.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), label)
    if not name or len(name.encode()) > _MOST_BYTES:
        raise InputError(
            f"class {label!r} cannot be the name of a folder: at most {_MOST_BYTES} bytes are allowed; give it another "
            "label (comln classifiers rename-classes), or leave out --copy-to"
        )
    return name


def check_folder(folder: Path, inputs: Sequence[Path | str]) -> None:
    """Raise InputError if nothing can be written to a folder, or copies there would be among the images of an input."""
    within = folder.resolve()
    for path in map(Path, inputs):
        if path.is_dir() and within.is_relative_to(path.resolve()):
            raise InputError(f"--copy-to {folder} is in {path}, whose images are classified; give a folder beside it")
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        reason = "may not be written to" if there.is_dir() else "is no folder"
        raise InputError(f"--copy-to {folder}: {there} {reason}; give another folder")


def check_labels(folder: Path, labels: Sequence[str], *, unknown: bool) -> None:
    """Raise InputError if a class cannot have a folder. Classes that differ only in case share one on some systems. If
    images may be found unknown, these get a folder of their own.
    """
    names = [folder_of(label) for label in labels]
    if unknown and _UNKNOWN in map(str.lower, names):
        raise InputError(
            f"{folder / _UNKNOWN} would be the folder of a class and of images that are of none; give the "
            "class another label (comln classifiers rename-classes), or leave out --unknown or --copy-to"
        )


def copy_files(folder: Path, found: Predictions, files: Sequence[Source]) -> int:
    """Copy files that were classified into folders of their classes in `folder`. Returns how many.

    A file that was copied by an earlier command is not copied again. Nothing is overwritten: another file of the same
    name gets one with a number, as 1 (2).png. Raises InputError if a file cannot be copied; those before it are.
    """
    by_name = {file.name: cast("Path", file.content) for file in files}
    chosen = {item.image: _UNKNOWN if item.unknown else folder_of(item.label) for item in found}
    made: set[Path] = set()
    for image, name in chosen.items():
        file, inside = by_name[image], folder / name
        try:
            inside.mkdir(parents=True, exist_ok=True)
            made.add(next(target for target in _targets(inside, file) if target not in made and _copy(file, target)))
        except OSError as error:
            raise InputError(
                f"{image}: cannot be copied into {inside}: {error.strerror}; the {len(made)} files before it are copied"
            ) from error
    return len(made)


def _targets(folder: Path, file: Path) -> Iterator[Path]:
    yield folder / file.name
    for number in count(2):
        yield folder / f"{file.stem} ({number}){file.suffix}"


def _copy(file: Path, target: Path) -> bool:
    """Copy a file, unless the target exists. Returns whether the target now has the file's content."""
    try:
        writer = target.open("xb")
    except FileExistsError:
        return target.is_file() and filecmp.cmp(file, target, shallow=False)
    try:
        with writer, file.open("rb") as reader:
            shutil.copyfileobj(reader, writer)
        shutil.copystat(file, target)
    except BaseException:  # Ctrl-C, too, leaves no part of a photo
        target.unlink()
        raise
    return True
