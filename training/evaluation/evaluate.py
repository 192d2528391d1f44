"""Accuracy on a fixed set of episodes, with its interval.

Images are embedded once, with batch norm's running statistics; an episode then adapts `Head`
exactly as the server does. Other heads are measured on the same episodes, so that two heads can be
compared episode by episode: how hard an episode is affects both and cancels in the difference.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle.head import Head, HorizonRule
from comln_serve.report import adapt
from training.data import ImageSet
from training.evaluation.tasks import Task, on_all_cores
from training.results.accuracy import Accuracy, mean_and_interval

Classify = Callable[[NDArray[np.float32], NDArray[np.intp], int, NDArray[np.float32]], NDArray[np.floating]]
"""A head: support embeddings phi, (M, d) or (M, V, d) with V views of each image, their classes (M,), the number of
classes N, and query embeddings (Q, d) -> scores (Q, N); the answer to a query is the class of the largest score."""


def evaluate(data: ImageSet, head: Head, task: Task, episodes: int, seed: int = 0) -> Accuracy:
    """Accuracy of adapted classifiers on `episodes` episodes drawn with `seed`; see `episode_accuracies`."""
    return summarise(episode_accuracies(data, adapted(head), task, episodes, seed), task, seed)


def adapted(head: Head, horizon: float | HorizonRule | None = None) -> Classify:
    """The bundle's own head, adapted as the server does it; `horizon` replaces its T or its rule for T."""

    return linear(lambda phi, classes, ways: adapt(head, phi, classes, ways, horizon=horizon, judge=False).solution.W)


def unadapted(head: Head) -> Classify:
    """The bundle's own start without adaptation, T = 0, and without its offset for unequal shots.

    The offset makes up for what the flow does to classes with few images. Without the flow it only favours them.
    """

    return linear(replace(head, shot_offset=0.0).initial_weights)


def linear(weights: Callable[[NDArray[np.float32], NDArray[np.intp], int], NDArray[np.floating]]) -> Classify:
    """A head of the weights (N, d) that a function makes of phi, classes (M,) and N."""

    def classify(
        phi: NDArray[np.float32], classes: NDArray[np.intp], ways: int, query: NDArray[np.float32]
    ) -> NDArray[np.floating]:
        return query @ weights(phi, classes, ways).T

    return classify


def episode_accuracies(data: ImageSet, classify: Classify, task: Task, episodes: int, seed: int) -> NDArray[np.float64]:
    """(episodes,) share of each episode's queries that a head classifies correctly.

    Args:
        data: embeddings, without rotated classes.
    """
    if data.rotations != 1:
        raise ValueError("evaluation uses the images as they are, without rotated classes")

    def run(number: int) -> float:
        drawn = task.draw(data, seed, number)
        phi, queries = data.images[drawn.support], data.first_views[drawn.query]
        scores = classify(phi, drawn.support_classes, task.ways, queries)
        return float((scores.argmax(axis=1) == drawn.query_classes).mean())

    return np.array(on_all_cores(run, episodes))


def summarise(accuracies: NDArray[np.float64], task: Task, seed: int) -> Accuracy:
    """Mean and interval of the accuracies (n,) of a task's episodes."""
    return Accuracy(task.ways, task.shots, task.queries, len(accuracies), seed, *mean_and_interval(accuracies))
