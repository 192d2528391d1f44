"""Data sets stored as one array of decoded images, with a label for each."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from comln_serve.imaging import Preprocessing
from training.data.images import DataError, ImageSet, fit_pixels
from training.data.restricted_pickle import load_pickle


def load_data_and_labels(path: Path, preprocessing: Preprocessing) -> ImageSet:
    """A pickle {"data": (n, H, W, 3) uint8, "labels": n of them}, as MetaOptNet distributes."""
    content = load_pickle(path)
    images = pixels(entry(content, "data", path), f"{path}, 'data'")
    members, names = members_and_names(entry(content, "labels", path), len(images), f"{path}, 'labels'")
    del content  # frees the original images if they have to be resized
    return ImageSet(fit_pixels(images, preprocessing), members, names)


def load_image_cache(path: Path, preprocessing: Preprocessing) -> ImageSet:
    """A pickle {"image_data": (n, H, W, 3) uint8, "class_dict": {class: indices}}, classes sorted."""
    content = load_pickle(path)
    images = pixels(entry(content, "image_data", path), f"{path}, 'image_data'")
    classes = entry(content, "class_dict", path)
    if not isinstance(classes, dict) or not classes:
        raise DataError(f"{path}, 'class_dict': expected {{class: [indices]}}, found {describe(classes)}")
    members = {
        text(name): _indices(indices, len(images), f"{path}, class {text(name)!r}")
        for name, indices in cast("dict[object, object]", classes).items()
    }
    if np.bincount(np.concatenate([*members.values()])).max() > 1:
        raise DataError(f"{path}, 'class_dict': an image belongs to two classes, or twice to one")
    names = sorted(members)
    del content
    return ImageSet(fit_pixels(images, preprocessing), tuple(members[name] for name in names), tuple(names))


def load_npz(path: Path, key: str) -> NDArray[Any]:
    """One array of an .npz file; arrays of Python objects are refused."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            names = list(archive)
            if key in names:
                return archive[key]
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise DataError(f"{path}: not a readable .npz file of plain arrays ({error})") from error
    raise DataError(f"{path}: no array {key!r}; it holds {', '.join(names) or 'none'}")


def entry(content: object, key: str, path: Path) -> object:
    """The value of `key` in a pickled dictionary; DataError if there is none."""
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a dictionary with {key!r}, found {describe(content)}")
    found = keys(content)
    if key not in found:
        raise DataError(f"{path}: no {key!r}; it holds {', '.join(map(repr, found)) or 'nothing'}")
    return found[key]


def keys(content: object) -> dict[str, object]:
    """A pickled dictionary with its keys as text; empty if `content` is not a dictionary."""
    if not isinstance(content, dict):
        return {}
    return {text(name): value for name, value in cast("dict[object, object]", content).items()}


def text(name: object) -> str:
    """A name as text; pickles of Python 2 hold bytes."""
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def pixels(value: object, where: str) -> NDArray[np.uint8]:
    """`value` if it is an array of RGB images (n, height, width, 3) uint8, else DataError."""
    if not (
        isinstance(value, np.ndarray)
        and value.dtype == np.uint8
        and value.ndim == 4
        and value.shape[-1] == 3
        and value.size > 0
    ):
        raise DataError(f"{where}: expected images (n, height, width, 3) uint8, found {describe(value)}")
    return np.asarray(value)


def members_and_names(labels: object, count: int, where: str) -> tuple[tuple[NDArray[np.intp], ...], tuple[str, ...]]:
    """Image indices and name of each class, in the order of the labels.

    Args:
        labels: of `count` images: a list or an array of integers or strings.
    """
    if isinstance(labels, list | tuple):
        values = cast("Sequence[object]", labels)
        array = _array([text(v) if isinstance(v, bytes) else v for v in values])
    else:
        array = _array(labels)
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise DataError(f"{where}: expected one integer or string an image, found {describe(labels)}")
    if len(array) != count:
        raise DataError(f"{where}: {len(array)} labels for {count} images")
    names, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    members = np.split(np.argsort(inverse, kind="stable"), np.cumsum(counts)[:-1])
    return tuple(members), tuple(map(str, names))


def check_classes(data: ImageSet, count: int, path: Path, split: str) -> ImageSet:
    """`data` if it has as many classes as the standard split, else DataError."""
    if len(data.names) != count:
        raise DataError(
            f"{path}: {len(data.names)} classes; the {split} split has {count}, so the file is "
            "incomplete or of another split"
        )
    return data


def describe(value: object) -> str:
    """A short description of an unexpected value, for messages."""
    if isinstance(value, np.ndarray):
        return f"an array {value.shape} of {value.dtype}"
    if isinstance(value, list | tuple | dict | set):
        return f"a {type(value).__name__} of {len(cast('list[object]', value))}"
    return f"{type(value).__name__} {value!r:.60}"


def _indices(indices: object, count: int, where: str) -> NDArray[np.intp]:
    array = _array(indices)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.size == 0:
        raise DataError(f"{where}: expected indices of images, found {describe(indices)}")
    if array.min() < 0 or array.max() >= count:
        raise DataError(f"{where}: indices up to {array.max()}, but there are {count} images")
    return array.astype(np.intp)


def _array(values: object) -> NDArray[Any]:
    """`values` as an array; an empty (0, 0) array, which is refused, if lists differ in length."""
    try:
        return np.asarray(values)
    except ValueError:
        return np.empty((0, 0))
