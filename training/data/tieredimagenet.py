"""tieredImageNet (Ren et al. 2018): 351, 97 and 160 classes."""

from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from comln_serve.imaging import Preprocessing
from training.data.arrays import check_classes, describe, entry, keys, load_npz, members_and_names, pixels
from training.data.image_folder import class_folders, load_class_folders
from training.data.images import DataError, ImageSet, ReadFile, build_image_set, fit_pixels
from training.data.restricted_pickle import load_pickle

_CLASSES = {"train": 351, "val": 97, "test": 160}
# Images converted from BGR to RGB at a time, in place.
_CHUNK = 4096


def load_tieredimagenet(root: Path, split: str, preprocessing: Preprocessing) -> ImageSet:
    """The classes of one split, in the order of their labels.

    Reads the first of these that `root` has: `<split>_images.npz` or `<split>_images_png.pkl`,
    each with `<split>_labels.pkl`; class folders `<split>/<class>`.
    """
    npz, png = root / f"{split}_images.npz", root / f"{split}_images_png.pkl"
    labels = root / f"{split}_labels.pkl"
    if npz.is_file():
        where, data = npz, _from_npz(npz, labels, preprocessing)
    elif png.is_file():
        where, data = png, _from_png(png, labels, preprocessing)
    elif (root / split).is_dir():
        where = root / split
        data = load_class_folders(class_folders(where), preprocessing, str(where))
    else:
        raise DataError(
            f"{root}: nothing of tieredImageNet's {split} split; expected {npz.name} or "
            f"{png.name}, with {labels.name}, or class folders {split}/<class>"
        )
    return check_classes(data, _CLASSES[split], where, split)


def _from_npz(path: Path, labels: Path, preprocessing: Preprocessing) -> ImageSet:
    images = pixels(load_npz(path, "images"), f"{path}, 'images'")
    members, names = _labels(labels, len(images))
    # The .npz files were written by OpenCV and are BGR; the PNG files are RGB.
    for start in range(0, len(images), _CHUNK):
        images[start : start + _CHUNK] = images[start : start + _CHUNK, ..., ::-1]
    return ImageSet(fit_pixels(images, preprocessing), members, names)


def _from_png(path: Path, labels: Path, preprocessing: Preprocessing) -> ImageSet:
    content = load_pickle(path)
    files = cast("list[object]", content) if isinstance(content, list) else []
    if not files:
        raise DataError(f"{path}: expected a list of PNG files as arrays, found {describe(content)}")
    members, names = _labels(labels, len(files))
    classes = [
        (name, [(f"image {i}", _encoded(files[i], f"{path}, image {i}")) for i in indices])
        for name, indices in zip(names, members, strict=True)
    ]
    return build_image_set(classes, preprocessing, str(path))


def _encoded(image: object, where: str) -> ReadFile:
    """A function that reads an image encoded in an array (size,) or (size, 1) of uint8, or in bytes."""
    if isinstance(image, np.ndarray) and image.dtype == np.uint8:
        return image.tobytes
    if isinstance(image, bytes):
        return lambda: image
    raise DataError(f"{where}: expected the bytes of a PNG file, found {describe(image)}")


def _labels(path: Path, count: int) -> tuple[tuple[NDArray[np.intp], ...], tuple[str, ...]]:
    """Members and names: `label_specific` in the authors' files, `labels` in MetaOptNet's."""
    content = load_pickle(path)
    key = "labels" if "labels" in keys(content) else "label_specific"
    return members_and_names(entry(content, key, path), count, f"{path}, {key!r}")
