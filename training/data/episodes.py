"""Few-shot episodes: N classes, k support and q query images of each.

An episode depends only on the random generator and on the number of images in each class, so equal
seeds give equal episodes in whatever format the images are stored.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.data.images import DataError, ImageSet


class TooFewClassesError(DataError):
    """There are fewer classes than the ways of an episode."""


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


def check_episodes(data: ImageSet, ways: int, shots: int, queries: int) -> None:
    """Refuse data from which some episode of `ways` classes could not be drawn.

    Args:
        shots, queries: largest number of images of a class in an episode.

    Raises:
        DataError: fewer classes than ways, or a class with too few images or groups of images.
    """
    _check_ways(data, ways)
    problems: dict[str, str] = {}
    for name, members in zip(data.names, data.members, strict=True):
        try:
            _check_class(data, name, members, shots, queries)
        except DataError as error:
            problems[name] = str(error)
    if problems:
        first, *others = problems
        more = f"; {len(others)} more have too few, such as {', '.join(map(repr, others[:3]))}" if others else ""
        raise DataError(problems[first] + more)


def sample_episode(rng: np.random.Generator, data: ImageSet, ways: int, shots: int, queries: int) -> Episode:
    """Draw classes, then images, without replacement.

    If the data has groups, the support images of a class are drawn first, then its queries from
    the groups without support images.
    """
    _check_ways(data, ways)
    classes = rng.choice(data.n_classes, size=ways, replace=False)
    picked = np.empty((ways, shots + queries), dtype=np.intp)
    for row, c in enumerate(classes):
        members = data.members[c // data.rotations]
        _check_class(data, data.names[c // data.rotations], members, shots, queries)
        if data.groups is None:
            picked[row] = rng.choice(members, size=shots + queries, replace=False)
        else:
            picked[row] = _draw_by_groups(rng, members, data.groups[members], shots, queries)
    return Episode(classes.astype(np.intp), picked[:, :shots], picked[:, shots:])


def _draw_by_groups(
    rng: np.random.Generator, members: NDArray[np.intp], groups: NDArray[np.intp], shots: int, queries: int
) -> NDArray[np.intp]:
    """(shots + queries,) images of a class: support images, then queries of other groups.

    Support images are drawn in random order. An image is skipped if the remaining groups would then
    have too few images for the queries.
    """
    labels, groups = np.unique(groups, return_inverse=True)
    sizes = np.bincount(groups).tolist()
    undecided, taken = set(range(len(labels))), 0
    chosen: set[int] = set()
    support: list[int] = []
    for i in rng.permutation(len(members)).tolist():
        group = int(groups[i])
        if group in undecided:
            undecided.remove(group)
            others = [sizes[g] for g in undecided]
            if _can_divide(taken + sizes[group], others, shots, len(members) - queries):
                chosen.add(group)
                taken += sizes[group]
        if group in chosen:
            support.append(i)
            if len(support) == shots:
                break
    free = np.flatnonzero(~np.isin(groups, list(chosen)))
    return members[np.concatenate([support, rng.choice(free, size=queries, replace=False)])]


def _can_divide(taken: int, others: list[int], least: int, most: int) -> bool:
    """Whether `taken` images and those of some of the `others` groups can be from least to most images."""
    sums = 1 << taken  # bit n: some choice of groups has n images
    for size in others:
        sums |= sums << size
    return (sums >> least) & ((1 << max(most - least + 1, 0)) - 1) != 0


def _check_ways(data: ImageSet, ways: int) -> None:
    if ways > data.n_classes:
        raise TooFewClassesError(f"{ways}-way episodes need {ways} classes; there are {data.n_classes}")


def _check_class(data: ImageSet, name: str, members: NDArray[np.intp], shots: int, queries: int) -> None:
    if len(members) < shots + queries:
        raise DataError(f"class {name!r} has {len(members)} images; an episode needs {shots} + {queries}")
    if data.groups is None:
        return
    sizes = np.unique(data.groups[members], return_counts=True)[1].tolist()
    if not _can_divide(0, sizes, shots, len(members) - queries):
        raise DataError(
            f"class {name!r} has {len(members)} images in {len(sizes)} groups, the largest of "
            f"{max(sizes)}; they cannot be divided into groups with {shots} support images "
            f"and other groups with {queries} queries"
        )
