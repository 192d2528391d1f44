"""The tasks a model is measured on: ways, shots, queries, and how their episodes are drawn and run."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from comln_serve.bundle.manifest import Shots, describe_task
from comln_serve.machine import usable_cpus
from training.data import DataError, ImageSet, sample_episode
from training.data.episodes import TooFewClassesError

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Drawn:
    """One episode, as indices into an `ImageSet`'s images.

    Attributes:
        support: (M,) images. support_classes: (M,) class of each, 0 <= c < ways, ascending.
        query: (Q,) images. query_classes: (Q,) class of each.
    """

    support: NDArray[np.intp]
    support_classes: NDArray[np.intp]
    query: NDArray[np.intp]
    query_classes: NDArray[np.intp]


@dataclass(frozen=True)
class Task:
    """A kind of episode.

    Attributes:
        ways: number of classes, at least 2.
        shots: support images of a class, or (least, most): the number of each class is then drawn
            between these, all equally likely.
        queries: query images of a class.
    """

    ways: int
    shots: Shots
    queries: int = 15

    def __post_init__(self) -> None:
        """Raise ValueError for an impossible task."""
        least, most = self.range
        ranged = not isinstance(self.shots, int)
        if self.ways < 2 or least < 1 or self.queries < 1 or (ranged and least >= most):
            raise ValueError(
                "a task has at least 2 ways, 1 shot and 1 query, and shots (least, most) with "
                f"least < most; got {self}, {self.queries} queries"
            )

    @property
    def range(self) -> tuple[int, int]:
        """Least and most support images of a class."""
        return (self.shots, self.shots) if isinstance(self.shots, int) else self.shots

    def __str__(self) -> str:
        """In the format of `parse_task`: "5x1", "5x1-10"."""
        least, most = self.range
        return f"{self.ways}x{least}" + (f"-{most}" if most != least else "")

    @property
    def words(self) -> str:
        """In words: "5-way 1-shot", "5-way 1-to-10-shot"."""
        return describe_task(self.ways, self.shots)

    def refused(self, error: DataError) -> DataError:
        """The error of data from which the task cannot be drawn, with what to do."""
        todo = "fewer ways or shots (--task), for fewer --queries, or add images"
        if isinstance(error, TooFewClassesError):
            todo = "fewer ways (--task), or add classes"
        return DataError(f"task {self} with {self.queries} queries a class: {error}. Ask for {todo}")

    def draw(self, data: ImageSet, seed: int, number: int) -> Drawn:
        """Episode `number` of a seed.

        With unequal shots an episode with the largest number of shots is drawn, and each class keeps
        its first few support images. The queries are therefore those of the task with the largest
        number of shots, and as many images of a class are needed.

        Raises:
            DataError: too few classes, or too few images of one.
        """
        rng = np.random.default_rng((seed, number))
        least, most = self.range
        try:
            episode = sample_episode(rng, data, self.ways, most, self.queries)
        except DataError as error:
            raise self.refused(error) from error
        kept = np.full(self.ways, most)
        if least != most:
            kept = rng.integers(least, most + 1, size=self.ways)
        chosen = np.arange(most) < kept[:, None]  # (N, most)
        classes = np.arange(self.ways)
        return Drawn(
            episode.support[chosen], np.repeat(classes, kept), episode.query.ravel(), np.repeat(classes, self.queries)
        )


def parse_task(text: str, queries: int = 15) -> Task:
    """The task of a text WAYSxSHOTS ("5x1") or WAYSxLEAST-MOST ("5x1-10").

    Raises:
        ValueError: the text has neither form.
    """
    ways, _, shots = text.partition("x")
    least, dash, most = shots.partition("-")
    parts = (ways, least, most if dash else least)
    if all(part.isdecimal() for part in parts):
        number, low, high = map(int, parts)
        if number >= 2 and 1 <= low <= high:
            return Task(number, low if low == high else (low, high), queries)
    raise ValueError(
        "expected WAYSxSHOTS such as 5x1, or WAYSxLEAST-MOST such as 5x1-10, with at least 2 ways "
        f"and 1 shot; got {text!r}"
    )


def on_all_cores(function: Callable[[int], _Result], episodes: int) -> list[_Result]:
    """`function(number)` of every episode, in their order."""
    # The matrix products are small: BLAS threads would spend more time waiting than computing.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(usable_cpus()) as pool:
        return list(pool.map(function, range(episodes)))
