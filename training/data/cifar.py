"""CIFAR-FS (Bertinetto et al. 2019) and FC100 (Oreshkin et al. 2018): two splits of CIFAR-100.

CIFAR-FS splits the 100 classes 64 / 16 / 20. FC100 splits the 20 superclasses 12 / 4 / 4, so that
its test classes are less similar to its training classes.
"""

from pathlib import Path
from typing import Literal, cast

import numpy as np

from comln_serve.imaging import Preprocessing
from training.data.arrays import check_classes, describe, entry, load_data_and_labels, members_and_names, text
from training.data.class_lists import SPLITS, standard_split
from training.data.image_folder import load_listed_classes
from training.data.images import DataError, ImageSet, fit_pixels
from training.data.restricted_pickle import load_pickle

_PICKLES = {"cifar_fs": "CIFAR_FS", "fc100": "FC100"}
_PYTHON_VERSION = "cifar-100-python"


def load_cifar(kind: Literal["cifar_fs", "fc100"], root: Path, split: str, preprocessing: Preprocessing) -> ImageSet:
    """The classes of one split of CIFAR-FS or FC100.

    Reads the first of these that `root` has: `CIFAR_FS_<split>.pickle` or `FC100_<split>.pickle`, CIFAR-100 as its
    authors distribute it for Python (`cifar-100-python`, or `root` itself), class folders `<class>`, `data/<class>`,
    `<split>/<class>` or `<superclass>/<class>`.
    """
    superclass_of = cifar_classes(kind, split)
    pickled = root / f"{_PICKLES[kind]}_{split}.pickle"
    if pickled.is_file():
        data = load_data_and_labels(pickled, preprocessing)
        return check_classes(data, len(superclass_of), pickled, split)
    for folder in (root, root / _PYTHON_VERSION):
        if (folder / "meta").is_file():
            return _from_python_version(folder, sorted(superclass_of), preprocessing)
    places = {
        name: [folder / name for folder in (root / split, root, root / "data", root / superclass)]
        for name, superclass in sorted(superclass_of.items())
    }
    if not any(path.is_dir() for paths in places.values() for path in paths):
        raise DataError(
            f"{root}: nothing of the {split} split; expected {pickled.name}, {_PYTHON_VERSION}, or "
            "class folders <class>, data/<class>, <split>/<class> or <superclass>/<class>"
        )
    return load_listed_classes(places, preprocessing, split, root)


def cifar_classes(kind: Literal["cifar_fs", "fc100"], split: str) -> dict[str, str]:
    """The superclass of each class of a split."""
    if kind == "cifar_fs":
        return {name: superclass for superclass, name in standard_split("cifar-fs", split)}
    superclasses = set(standard_split("fc100", split))
    every = (pair for part in SPLITS for pair in standard_split("cifar-fs", part))
    return {name: superclass for superclass, name in every if superclass in superclasses}


def _from_python_version(folder: Path, names: list[str], preprocessing: Preprocessing) -> ImageSet:
    """The named classes, with the images of both CIFAR-100's training and its test set."""
    meta = folder / "meta"
    listed = entry(load_pickle(meta), "fine_label_names", meta)
    known = [text(name) for name in cast("list[object]", listed)] if isinstance(listed, list) else []
    if not set(names) <= set(known):
        raise DataError(f"{meta}, 'fine_label_names': expected 100 names, found {describe(listed)}")
    numbers = [known.index(name) for name in names]
    images, labels = [], []
    for path in (folder / "train", folder / "test"):
        content = load_pickle(path)
        rows = entry(content, "data", path)
        if not (isinstance(rows, np.ndarray) and rows.dtype == np.uint8 and rows.shape[1:] == (3072,)):
            raise DataError(f"{path}, 'data': expected (n, 3072) uint8, found {describe(rows)}")
        members, found = members_and_names(entry(content, "fine_labels", path), len(rows), f"{path}, 'fine_labels'")
        by_number = dict(zip(found, members, strict=True))
        for position, number in enumerate(numbers):
            if str(number) not in by_number:
                raise DataError(f"{path}: no image of class {names[position]!r}")
            mine = by_number[str(number)]
            # Stored as colour planes.
            images.append(np.asarray(rows)[mine].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
            labels.append(np.full(len(mine), position))
    members, _ = members_and_names(np.concatenate(labels), sum(map(len, labels)), str(folder))
    return ImageSet(fit_pixels(np.concatenate(images), preprocessing), members, tuple(names))
