"""Heads compared on the same embeddings and the same episodes; differences are taken in pairs."""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from training.data import ImageSet
from training.evaluation.evaluate import Classify, episode_accuracies, summarise
from training.evaluation.tasks import Task
from training.results.accuracy import Accuracy, Difference, mean_and_interval


@dataclass(frozen=True)
class Measured:
    """Accuracies of one head.

    Attributes:
        episodes: (n,) share of right answers in each episode.
        unconverged: number of fits that stopped before they reached their tolerance.
    """

    accuracy: Accuracy
    episodes: NDArray[np.float64]
    unconverged: int


def measure(data: ImageSet, classify: Classify, task: Task, episodes: int, seed: int) -> Measured:
    """One head on the episodes of a seed; fits that do not converge are counted, not printed."""
    # Warning filters belong to the process, so this holds for the threads of the run as well.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        accuracies = episode_accuracies(data, classify, task, episodes, seed)
    others = [w for w in caught if not issubclass(w.category, ConvergenceWarning)]
    for other in others:
        warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    return Measured(summarise(accuracies, task, seed), accuracies, len(caught) - len(others))


def difference(one: Measured, other: Measured) -> Difference:
    """How far `one` is ahead of `other` on the same episodes."""
    return Difference(*mean_and_interval(one.episodes - other.episodes))
