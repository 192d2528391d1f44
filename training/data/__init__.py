"""Images, classes and episodes."""

from collections.abc import Callable
from pathlib import Path

from training.config import DataConfig
from training.data.cifar import load_cifar
from training.data.cub import load_cub
from training.data.embeddings import load_embeddings
from training.data.episodes import Episode, check_episodes, sample_episode
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
    "miniimagenet": lambda root, split, config: load_miniimagenet(
        root, split, config.preprocessing
    ),
    "tieredimagenet": lambda root, split, config: load_tieredimagenet(
        root, split, config.preprocessing
    ),
    "cifar_fs": lambda root, split, config: load_cifar(
        "cifar_fs", root, split, config.preprocessing
    ),
    "fc100": lambda root, split, config: load_cifar("fc100", root, split, config.preprocessing),
    "cub": lambda root, split, config: load_cub(root, split, config.preprocessing),
    "image_folder": lambda root, split, config: load_image_folder(
        root, split, config.preprocessing, config.class_shares, config.splits
    ),
    "image_csv": lambda root, split, config: load_image_csv(
        root, split, config.preprocessing, config.class_shares
    ),
    "embeddings": lambda root, split, _: load_embeddings(root, split),
}


def load_split(config: DataConfig, root: Path, split: str) -> ImageSet:
    """Images of one split ("train", "val" or "test"); docs/data.md says what `root` may hold.

    Rotated classes are for training only.

    Raises:
        DataError: missing, damaged or partial data; the message names the file.
    """
    return _LOADERS[config.kind](root, split, config)
