"""Open-set episodes: besides queries of the task's classes there are queries of unknown classes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from training.data import DataError, ImageSet, check_episodes
from training.evaluation.tasks import Task, on_all_cores

MAX_UNKNOWN_CLASSES = 5

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class OpenSetEpisode:
    """One episode, as embeddings.

    Attributes:
        phi: (M, d) or (M, V, d) of the support images. classes: (M,) class of each, 0 <= c < ways.
        query: (Q, d) of the task's classes. query_classes: (Q,).
        unknown: (R, d) of queries whose classes are not in the task.
    """

    phi: NDArray[np.float32]
    classes: NDArray[np.intp]
    query: NDArray[np.float32]
    query_classes: NDArray[np.intp]
    unknown: NDArray[np.float32]


@dataclass(frozen=True)
class OpenSetEpisodes:
    """The episodes of a task with a seed, of embeddings."""

    data: ImageSet
    task: Task
    episodes: int
    seed: int

    def draw(self, number: int) -> OpenSetEpisode:
        """Episode `number`: that of a task of more ways, the last of which are the unknown classes."""
        drawn = _with_unknown(self.data, self.task).draw(self.data, self.seed, number)
        support = drawn.support_classes < self.task.ways
        known = drawn.query_classes < self.task.ways
        queries = self.data.first_views
        return OpenSetEpisode(
            self.data.images[drawn.support[support]],
            drawn.support_classes[support],
            queries[drawn.query[known]],
            drawn.query_classes[known],
            queries[drawn.query[~known]],
        )

    def map(self, function: Callable[[OpenSetEpisode, int], _Result]) -> list[_Result]:
        """`function(episode, number)` for every episode, in their order, on all cores."""
        return on_all_cores(lambda number: function(self.draw(number), number), self.episodes)


def check_open_set(data: ImageSet, task: Task) -> None:
    """Refuse, with a DataError, data that has no class outside the task, or too few images of a class."""
    if unknown_classes(data, task) < 1:
        raise DataError(
            f"task {task} leaves none of the {data.n_classes} classes; at least one more is "
            "needed, whose images should be unknown. Ask for fewer ways, or add classes"
        )
    try:
        check_episodes(data, _with_unknown(data, task).ways, task.range[1], task.queries)
    except DataError as error:
        raise task.refused(error) from error


def unknown_classes(data: ImageSet, task: Task) -> int:
    """Number of unknown classes in an episode."""
    return min(MAX_UNKNOWN_CLASSES, data.n_classes - task.ways)


def _with_unknown(data: ImageSet, task: Task) -> Task:
    return replace(task, ways=task.ways + unknown_classes(data, task))
