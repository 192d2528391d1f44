"""Episodes in which images of classes outside the task are asked about, too."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from comln_serve.machine import usable_cpus
from training.data import DataError, ImageSet, check_episodes
from training.evaluation.tasks import Task

MOST_STRANGERS = 5

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Encounter:
    """One episode, as embeddings.

    Attributes:
        phi: (M, d) of the support images. classes: (M,) class of each, 0 <= c < ways.
        query: (Q, d) of the task's classes. query_classes: (Q,).
        strangers: (R, d) of classes outside the task.
    """

    phi: NDArray[np.float32]
    classes: NDArray[np.intp]
    query: NDArray[np.float32]
    query_classes: NDArray[np.intp]
    strangers: NDArray[np.float32]


@dataclass(frozen=True)
class Encounters:
    """The episodes of a task with a seed, over embeddings (n, d) of `data.images`."""

    embeddings: NDArray[np.float32]
    data: ImageSet
    task: Task
    episodes: int
    seed: int

    @property
    def strangers(self) -> int:
        """Classes outside the task in an episode."""
        return _strangers(self.data, self.task)

    def draw(self, number: int) -> Encounter:
        """Episode `number`: that of a task of more ways, of which the last are the strangers."""
        drawn = _wider(self.data, self.task).draw(self.data, self.seed, number)
        support = drawn.support_classes < self.task.ways
        known = drawn.query_classes < self.task.ways
        return Encounter(
            self.embeddings[drawn.support[support]],
            drawn.support_classes[support],
            self.embeddings[drawn.query[known]],
            drawn.query_classes[known],
            self.embeddings[drawn.query[~known]],
        )

    def map(self, work: Callable[[Encounter, int], _Result]) -> Iterator[_Result]:
        """`work` of every episode and its number, in their order, on all cores."""
        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(usable_cpus()) as pool:
            yield from pool.map(lambda number: work(self.draw(number), number), range(self.episodes))


def check(data: ImageSet, task: Task) -> None:
    """Refuse data that leaves no class outside the task.

    Raises:
        DataError: that, or too few images of a class.
    """
    if _strangers(data, task) < 1:
        raise DataError(
            f"task {task} leaves none of the {data.n_classes} classes; at least one more is "
            "needed, whose images should be unknown. Ask for fewer ways"
        )
    check_episodes(data, _wider(data, task).ways, task.range[1], task.queries)


def _strangers(data: ImageSet, task: Task) -> int:
    return min(MOST_STRANGERS, data.n_classes - task.ways)


def _wider(data: ImageSet, task: Task) -> Task:
    return replace(task, ways=task.ways + _strangers(data, task))
