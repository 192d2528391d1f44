"""Precomputed embeddings in the format of LEO (Rusu et al. 2019).

`<split>_embeddings.pkl` is {"keys": ["<number>-<class>-<image file>"], "embeddings": (n, d)}. LEO's
authors distribute embeddings by a WRN-28-10, d = 640, of miniImageNet and tieredImageNet.
"""

from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from training.data.arrays import describe, entry, members_and_names, text
from training.data.images import DataError, ImageSet
from training.data.restricted_pickle import load_pickle


def load_embeddings(root: Path, split: str) -> ImageSet:
    """The embeddings (n, d) float32 of one split, classes in alphabetical order."""
    path = root / f"{split}_embeddings.pkl"
    content = load_pickle(path)
    embeddings = _vectors(entry(content, "embeddings", path), path)
    keys = entry(content, "keys", path)
    if not isinstance(keys, list | tuple | np.ndarray):
        raise DataError(f"{path}, 'keys': expected a list of strings, found {describe(keys)}")
    labels = [_class_of(text(key), path) for key in cast("list[object]", keys)]
    members, names = members_and_names(labels, len(embeddings), f"{path}, 'keys'")
    return ImageSet(embeddings, members, names)


def _vectors(value: object, path: Path) -> NDArray[np.float32]:
    try:
        array = np.asarray(value)
    except ValueError as error:  # a list of vectors of different lengths
        raise DataError(f"{path}, 'embeddings': vectors of different sizes") from error
    if array.ndim != 2 or array.dtype.kind != "f" or array.size == 0:
        raise DataError(f"{path}, 'embeddings': expected (n, d) floats, found {describe(value)}")
    with np.errstate(over="ignore"):  # float64 beyond float32 becomes infinity, refused below
        embeddings = array.astype(np.float32, copy=False)
    if not np.isfinite(embeddings).all():
        row = int(np.argmin(np.isfinite(embeddings).all(axis=1)))
        raise DataError(f"{path}, 'embeddings': row {row} is not finite in float32")
    return embeddings


def _class_of(key: str, path: Path) -> str:
    parts = key.split("-", 2)
    if len(parts) != 3 or not parts[1]:
        raise DataError(f"{path}, 'keys': expected '<number>-<class>-<image file>', found {key!r:.80}")
    return parts[1]
