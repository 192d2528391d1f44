"""Any image folder: `<root>/<split>/<class>/<image>`, or `<root>/<class>/<image>`.

Without split folders the classes are split here, the same way every time: they are shuffled with a
fixed seed and cut by the configured shares. Few-shot splits are of classes, never of images: the
classes a model is measured on must be new to it.
"""

from pathlib import Path

import numpy as np

from comln_serve.imaging import Preprocessing
from training.data.images import DataError, ImageSet, build_image_set

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif"}
SPLITS = ("train", "val", "test")

_SHUFFLE_SEED = 0


def load_image_folder(
    root: Path, split: str, preprocessing: Preprocessing, shares: tuple[float, float, float]
) -> ImageSet:
    """The classes of one split ("train", "val" or "test"), in alphabetical order.

    Args:
        shares: of the classes that go to train, val and test where the folder has no splits.

    Raises:
        DataError: no such folder, no class in it, or a class without images.
    """
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; expected <class>/<image> or <split>/<class>/...")
    if any((root / name).is_dir() for name in SPLITS):
        folders = _class_folders(root / split)
    else:
        folders = _share(_class_folders(root), split, shares)
    classes = [
        (
            folder.name,
            [
                (path.name, path.read_bytes)
                for path in sorted(folder.iterdir())
                if path.suffix.lower() in SUFFIXES
            ],
        )
        for folder in folders
    ]
    try:
        return build_image_set(classes, preprocessing)
    except DataError as error:
        raise DataError(f"{root}, split {split}: {error}") from error


def _class_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; the splits are {', '.join(SPLITS)}")
    return sorted(child for child in folder.iterdir() if child.is_dir())


def _share(folders: list[Path], split: str, shares: tuple[float, float, float]) -> list[Path]:
    order = np.random.default_rng(_SHUFFLE_SEED).permutation(len(folders))
    ends = np.round(np.cumsum(shares) * len(folders)).astype(int)
    starts = [0, *ends[:-1]]
    which = SPLITS.index(split)
    return [folders[i] for i in sorted(order[starts[which] : ends[which]])]
