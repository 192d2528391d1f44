"""Accuracy on a fixed set of episodes, with its interval.

Images are embedded once, with running statistics; an episode then adapts `Head` exactly as the
server does. Other heads go through the same episodes, so that two heads can be compared episode by
episode: what makes an episode hard is common to both and cancels.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from comln_serve.bundle.head import Head, HorizonRule
from comln_serve.bundle.manifest import Shots, describe_task
from comln_serve.machine import usable_cpus
from comln_serve.report import adapt
from training.data import ImageSet
from training.evaluation.tasks import Task

Classify = Callable[[NDArray[np.float32], NDArray[np.intp], int, NDArray[np.float32]], NDArray[np.floating]]
"""A head: support embeddings phi (M, d), their classes (M,), the number of classes N, and query
embeddings (Q, d) -> scores (Q, N), of which the largest of a row is the answer."""


@dataclass(frozen=True)
class Accuracy:
    """Mean accuracy over episodes and half the width of its 95% interval, 1.96 sd / sqrt(n)."""

    ways: int
    shots: Shots
    queries: int
    episodes: int
    seed: int
    mean: float
    interval: float

    def __str__(self) -> str:
        return (
            f"{describe_task(self.ways, self.shots)}: {100 * self.mean:.2f} +- "
            f"{100 * self.interval:.2f} % ({self.episodes} episodes, {self.queries} queries a "
            f"class, seed {self.seed})"
        )


def evaluate(
    embeddings: NDArray[np.float32],
    head: Head,
    data: ImageSet,
    *,
    ways: int,
    shots: Shots,
    queries: int = 15,
    episodes: int = 1000,
    seed: int = 0,
) -> Accuracy:
    """Accuracy of adapted classifiers on `episodes` episodes drawn with `seed`.

    Args:
        embeddings: (n, d) of `data.images`, in their order; `data.rotations` must be 1.
    """
    task = Task(ways, shots, queries)
    return summarise(episode_accuracies(embeddings, data, adapted(head), task, episodes, seed), task, seed)


def adapted(head: Head, horizon: float | HorizonRule | None = None) -> Classify:
    """The bundle's own head, adapted as the server does; `horizon` replaces its T, or its rule."""

    def classify(
        phi: NDArray[np.float32], classes: NDArray[np.intp], ways: int, query: NDArray[np.float32]
    ) -> NDArray[np.floating]:
        return query @ adapt(head, phi, classes, ways, horizon=horizon, judge=False).solution.W.T

    return classify


def unadapted(head: Head) -> Classify:
    """The bundle's own start, T = 0: what is left of it without adaptation."""

    def classify(
        phi: NDArray[np.float32], classes: NDArray[np.intp], ways: int, query: NDArray[np.float32]
    ) -> NDArray[np.floating]:
        return query @ head.initial_weights(phi, classes, ways).T

    return classify


def episode_accuracies(
    embeddings: NDArray[np.float32], data: ImageSet, classify: Classify, task: Task, episodes: int, seed: int
) -> NDArray[np.float64]:
    """(episodes,) share of the queries of each episode that a head answers right.

    Args:
        embeddings: (n, d) of `data.images`, in their order; `data.rotations` must be 1.
    """
    if data.rotations != 1:
        raise ValueError("evaluation uses the images as they are, without rotated classes")

    def run(number: int) -> float:
        drawn = task.draw(data, seed, number)
        scores = classify(embeddings[drawn.support], drawn.support_classes, task.ways, embeddings[drawn.query])
        return float((scores.argmax(axis=1) == drawn.query_classes).mean())

    # The products are small: BLAS on several threads would wait for them more than compute.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(usable_cpus()) as pool:
        return np.array(list(pool.map(run, range(episodes))))


def summarise(accuracies: NDArray[np.float64], task: Task, seed: int) -> Accuracy:
    """What the accuracies (n,) of episodes come to."""
    return Accuracy(task.ways, task.shots, task.queries, len(accuracies), seed, *mean_and_interval(accuracies))


def mean_and_interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean of (n,) values and half the width of its 95% interval, infinite for a single one."""
    spread = float(values.std(ddof=1)) if len(values) > 1 else math.inf
    return float(values.mean()), 1.96 * spread / math.sqrt(len(values))
