"""Finds the images of a folder, and the classes of a folder of class folders."""

import os
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from comln_serve.client.errors import InputError
from comln_serve.client.images import Source, name_of, sources
from comln_serve.client.results import Skipped

Folder: TypeAlias = str | PathLike[str]

SUFFIXES = (
    *(".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif"),
    *(".heic", ".heif", ".avif", ".tif", ".tiff", ".ppm"),
)
_NO_IMAGE = "is no image by its name, which does not end in .jpg, .png, ..."
_NO_FILE = "is no file that can be read: a broken link, a pipe, a device, or in a folder that may not be entered"
# Names of the parts of a data set, of which each holds folders of the same classes.
_PARTS = {"train", "training", "val", "valid", "validation", "test", "testing"}
# What file managers leave in folders, and archives made by them.
_LITTER = {"thumbs.db", "desktop.ini", "__macosx"}


def read_class_folders(folder: Folder, *, every_class: bool = True) -> tuple[list[Source], tuple[Skipped, ...]]:
    """The labelled images of a folder of class folders, and the files that were left out.

    A class is a folder that holds images itself; its label is its path below `folder`. Two folders named as parts of
    a data set, such as `train` and `test`, are refused: each of them holds the same classes. The images are in the
    order in which they are sent: the first of every class, then the second of every class, and so on, so that a part
    of them is a fair sample of all. Hidden files are ignored.

    Args:
        every_class: refuse a class folder without an image; otherwise it is left out.

    Raises:
        InputError: no such folder, no class in it, a class folder without an image or with a name that is no label,
            or parts of a data set.
    """
    root = existing_folder(folder)
    skipped: list[Skipped] = []
    found: list[Source] = []
    labels: list[str] = []
    loose: list[Path] = []
    for inner, files, has_folders in _walk(root):
        images, others = _sort_out(files)
        skipped += others
        if inner == root:
            loose = images
        elif images:
            found += [Source(name_of(path), path) for path in images]
            labels += [inner.relative_to(root).as_posix()] * len(images)
        elif not has_folders:
            if every_class:
                raise InputError(f"{inner}: this class folder holds no image; add some, or remove the folder")
            skipped.append(Skipped(image=name_of(inner), reason="is a class folder without an image"))
    above = name_of(root.resolve().parent)
    tops = {label.partition("/")[0] for label in labels}
    parts = sorted((top for top in tops if top.lower() in _PARTS), key=lambda top: "train" not in top.lower())
    if len(parts) > 1:
        raise InputError(
            f"{root}: {', '.join(parts)} look like parts of a data set, not like classes; give {root}/{parts[0]} to "
            f"adapt to, and measure the result with {root}/{parts[-1]}"
        )
    if not labels:
        hint = f". It holds images itself: if it is a class, give the folder that it is in, {above}" if loose else ""
        raise InputError(f"{root}: there is no folder of images in it; expected {root}/<class>/<image>{hint}")
    reason = f"is beside the class folders, in none of them; expected {root}/<class>/<image>"
    skipped += [Skipped(image=name_of(path), reason=reason) for path in loose]
    return in_turns(sources(found, labels)), tuple(skipped)


def read_folder(folder: Folder) -> tuple[list[Source], tuple[Skipped, ...]]:
    """All images of a folder and of the folders in it, by path, and the files that were left out. Raises InputError if
    there is no such folder, or no image in it.
    """
    root = existing_folder(folder)
    paths, skipped = _sort_out(path for _, inside, _ in _walk(root) for path in inside)
    if not paths:
        raise InputError(f"{root}: there is no image in it, of those ending in {', '.join(SUFFIXES)}")
    return [Source(name_of(path), path) for path in paths], tuple(skipped)


def existing_folder(folder: Folder) -> Path:
    """The path of a folder. Raises InputError if it does not exist, or is no folder."""
    root = Path(folder)
    if root.is_dir():
        return root
    if not os.path.lexists(root):
        raise InputError(f"{root}: there is no such folder")
    raise InputError(f"{root}: is a file, not a folder; unpack an archive, and give the folder that was in it")


def in_turns(images: Iterable[Source]) -> list[Source]:
    """The first image of every class, then the second of every class, and so on: the first n are of as many classes as
    possible.
    """
    classes: dict[str | None, list[Source]] = {}
    for image in images:
        classes.setdefault(image.label, []).append(image)
    return [image for row in zip_longest(*classes.values()) for image in row if image is not None]


def _sort_out(files: Iterable[Path]) -> tuple[list[Path], list[Skipped]]:
    """The images of some files, and the others with the reason."""
    images: list[Path] = []
    others: list[Skipped] = []
    for path in files:
        is_named_so = path.suffix.lower() in SUFFIXES
        # Reading a pipe would wait for ever. Unlike `Path.is_file`, `isfile` raises nothing where a folder is closed.
        if is_named_so and os.path.isfile(path):  # noqa: PTH113
            images.append(path)
        else:
            others.append(Skipped(image=name_of(path), reason=_NO_FILE if is_named_so else _NO_IMAGE))
    return images, others


def _walk(root: Path) -> Iterator[tuple[Path, list[Path], bool]]:
    """(folder, its files, whether it has folders) of a folder and all below it, in alphabetical order."""
    waiting: list[tuple[Path, frozenset[tuple[int, int]]]] = [(root, frozenset())]
    while waiting:
        folder, above = waiting.pop()
        try:
            found = folder.stat()
            identity = (found.st_dev, found.st_ino)
            if identity in above:  # a link to a folder above it would go round for ever
                continue
            children = sorted(
                path for path in folder.iterdir() if path.name[0] != "." and path.name.lower() not in _LITTER
            )
        except OSError as error:
            raise InputError(f"{name_of(folder)}: cannot be listed: {error.strerror}") from error
        folders = [path for path in children if os.path.isdir(path)]  # noqa: PTH112 - as of `isfile`
        others = set(children).difference(folders)
        files = [path for path in children if path in others]
        yield folder, files, bool(folders)
        waiting += [(path, above | {identity}) for path in reversed(folders)]
