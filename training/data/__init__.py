"""Images, classes and episodes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from training.config import DataConfig
from training.config.data import Use
from training.data.cifar import load_cifar
from training.data.class_lists import ALL, SPLITS
from training.data.cub import load_cub
from training.data.embeddings import load_embeddings
from training.data.episodes import Episode, check_episodes, sample_episode
from training.data.groups import group_images
from training.data.image_csv import load_image_csv
from training.data.image_folder import load_image_folder
from training.data.images import DataError, ImageSet
from training.data.miniimagenet import load_miniimagenet
from training.data.omniglot import load_omniglot
from training.data.tieredimagenet import load_tieredimagenet

__all__ = ["DataError", "Episode", "ImageSet", "check_episodes", "load_split", "sample_episode"]

_LOADERS: dict[str, Callable[[Path, str, DataConfig], ImageSet]] = {
    "omniglot": lambda root, split, config: load_omniglot(
        root, split, config.preprocessing, rotations=config.rotations and split == "train"
    ),
    "miniimagenet": lambda root, split, config: load_miniimagenet(root, split, config.preprocessing),
    "tieredimagenet": lambda root, split, config: load_tieredimagenet(root, split, config.preprocessing),
    "cifar_fs": lambda root, split, config: load_cifar("cifar_fs", root, split, config.preprocessing),
    "fc100": lambda root, split, config: load_cifar("fc100", root, split, config.preprocessing),
    "cub": lambda root, split, config: load_cub(root, split, config.preprocessing),
    "image_folder": lambda root, split, config: load_image_folder(
        root, split, config.preprocessing, config.class_shares, config.splits
    ),
    "image_csv": lambda root, split, config: load_image_csv(root, split, config.preprocessing, config.class_shares),
    "embeddings": lambda root, split, _: load_embeddings(root, split),
}


# Kinds whose loaders know the split "all".
_OWN_IMAGES = {"image_folder", "image_csv"}


def load_split(config: DataConfig, root: Path, split: str, *, use: Use = "both") -> ImageSet:
    """Images of one split ("train", "val" or "test"); docs/data.md says what `root` may hold.

    Rotated classes are for training only. The split "all" is every class of an image folder or CSV
    file; for other kinds it is the three splits together.

    Args:
        use: "train" or "val": this split has all the classes, and there is no other split.

    Raises:
        DataError: missing, damaged or incomplete data; the message names the file. Also a
            `config.group` that matches no file name, or a split ruled out by `use`.
    """
    if use != "both" and split != ALL:
        if split != use:
            raise DataError(
                f"{root}: the recipe uses all classes of this data set for {use} (use: {use}), so "
                f"there is no split {split}; its splits are {use} and {ALL}"
            )
        everything = load_split(config, root, ALL)
        rotated = config.rotations and split == "train"
        return replace(everything, rotations=4) if rotated else everything
    if split == ALL and config.kind not in _OWN_IMAGES:
        data = _together([_LOADERS[config.kind](root, part, config) for part in SPLITS])
    else:
        data = _LOADERS[config.kind](root, split, config)
    if config.group is None:
        return data
    try:
        return group_images(data, config.group)
    except DataError as error:
        raise DataError(f"{root}, split {split}: {error}") from error


def _together(parts: list[ImageSet]) -> ImageSet:
    """One set of the classes of several, without rotated classes."""
    starts = np.cumsum([0, *(len(part.images) for part in parts[:-1])])
    files = [part.files for part in parts if part.files is not None]
    return ImageSet(
        np.concatenate([part.images for part in parts]),
        tuple(members + start for part, start in zip(parts, starts, strict=True) for members in part.members),
        tuple(name for part in parts for name in part.names),
        files=tuple(name for names in files for name in names) if len(files) == len(parts) else None,
    )
