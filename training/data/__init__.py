"""Images, classes and episodes."""

from pathlib import Path

from training.config import DataConfig
from training.data.episodes import Episode, sample_episode
from training.data.image_folder import load_image_folder
from training.data.images import DataError, ImageSet
from training.data.omniglot import load_omniglot

__all__ = ["DataError", "Episode", "ImageSet", "load_split", "sample_episode"]


def load_split(config: DataConfig, root: Path, split: str) -> ImageSet:
    """Images of one split ("train", "val" or "test"). Rotated classes are for training only."""
    if config.kind == "omniglot":
        rotations = config.rotations and split == "train"
        return load_omniglot(root, split, config.preprocessing, rotations=rotations)
    return load_image_folder(root, split, config.preprocessing, config.class_shares)
