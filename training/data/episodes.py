"""Few-shot episodes: N classes, k support and q query images of each.

An episode is a function of a generator and the counts of images a class has, so equal seeds give
equal episodes wherever the images come from.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.data.images import DataError, ImageSet


@dataclass(frozen=True)
class Episode:
    """Indices into an `ImageSet`.

    Attributes:
        classes: (N,) classes.
        support: (N, k) image indices. query: (N, q) image indices.
    """

    classes: NDArray[np.intp]
    support: NDArray[np.intp]
    query: NDArray[np.intp]


def check_episodes(data: ImageSet, ways: int, images: int) -> None:
    """Refuse data that some episode of `ways` classes with `images` each cannot be drawn from.

    Raises:
        DataError: fewer classes than ways, or a class with fewer images.
    """
    _check_ways(data, ways)
    smallest = min(range(len(data.members)), key=lambda c: len(data.members[c]))
    if len(data.members[smallest]) < images:
        raise DataError(
            f"class {data.names[smallest]!r} has {len(data.members[smallest])} images; episodes "
            f"need {images} of each class, support and query together"
        )


def sample_episode(
    rng: np.random.Generator, data: ImageSet, ways: int, shots: int, queries: int
) -> Episode:
    """Draw classes, then images, without replacement.

    Raises:
        DataError: fewer classes than ways, or a class with fewer than shots + queries images.
    """
    _check_ways(data, ways)
    classes = rng.choice(data.n_classes, size=ways, replace=False)
    picked = np.empty((ways, shots + queries), dtype=np.intp)
    for row, c in enumerate(classes):
        members = data.members[c // data.rotations]
        if len(members) < shots + queries:
            raise DataError(
                f"class {data.names[c // data.rotations]!r} has {len(members)} images; an episode "
                f"needs {shots} + {queries}"
            )
        picked[row] = rng.choice(members, size=shots + queries, replace=False)
    return Episode(classes.astype(np.intp), picked[:, :shots], picked[:, shots:])


def _check_ways(data: ImageSet, ways: int) -> None:
    if ways > data.n_classes:
        raise DataError(f"{ways}-way episodes need {ways} classes; there are {data.n_classes}")
