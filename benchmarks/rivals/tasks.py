"""A few-shot task as images, and the data sets that tasks are drawn from."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from training.config import BackboneConfig, DataConfig
from training.data import Episode, load_split, sample_episode
from training.data.resident import ResidentImages

QUERIES = 15
"""Query images of each class of a task, in training and in measuring."""


@dataclass(frozen=True)
class Problem:
    """A data set as all algorithms see it: images of one size, and the Conv-4 that embeds them."""

    data: DataConfig
    backbone: BackboneConfig

    @property
    def image_size(self) -> int:
        """Side of the images in pixels."""
        return self.data.preprocessing.image_size


def _problem(data: Mapping[str, object], size: int, backbone: Mapping[str, object]) -> Problem:
    preprocessing = {"image_size": size, "resize": "crop", "interpolation": "bilinear"}
    return Problem(
        DataConfig.model_validate({**data, "preprocessing": preprocessing}),
        BackboneConfig.model_validate({"kind": "conv4", "channels": 64, **backbone}),
    )


PROBLEMS = {
    "miniimagenet": _problem(
        {"kind": "miniimagenet"}, 42, {"colour": "rgb", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    ),
    "omniglot": _problem(
        {"kind": "omniglot", "rotations": True}, 28, {"colour": "grey", "mean": [0.92], "std": [0.26]}
    ),
}


def load_images(name: str, path: Path, split: str) -> ResidentImages:
    """A split of the data set of this name."""
    return ResidentImages(load_split(PROBLEMS[name].data, path, split), torch.device("cpu"))


@dataclass(frozen=True)
class Task:
    """Images of N classes, class by class.

    Attributes:
        support: (N k, S, S, 3) uint8, or whatever the network takes. query: (N q, S, S, 3).
        ways: N.
    """

    support: Tensor
    query: Tensor
    ways: int

    @cached_property
    def support_labels(self) -> Tensor:
        """(N k,) int64."""
        return torch.arange(self.ways).repeat_interleave(len(self.support) // self.ways)

    @cached_property
    def query_labels(self) -> Tensor:
        """(N q,) int64."""
        return torch.arange(self.ways).repeat_interleave(len(self.query) // self.ways)


def one_hot(labels: Tensor, like: Tensor) -> Tensor:
    """(n, N) in the dtype of `like`, for labels (n,) of all N classes."""
    return functional.one_hot(labels).to(like.dtype)


def gather(images: ResidentImages, episode: Episode) -> Task:
    """The images of an episode."""
    support, query = (
        images.gather(np.repeat(episode.classes, indices.shape[1]), indices.ravel())
        for indices in (episode.support, episode.query)
    )
    return Task(support, query, len(episode.classes))


def draw(images: ResidentImages, rng: np.random.Generator, count: int, ways: int, shots: int) -> list[Task]:
    """`count` tasks of `ways` classes with `shots` support images and QUERIES query images each."""
    return [gather(images, sample_episode(rng, images.data, ways, shots, QUERIES)) for _ in range(count)]
