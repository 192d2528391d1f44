"""A bundle's head beside others: the same embeddings, the same episodes, differences in pairs."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from training.data import ImageSet
from training.evaluation.evaluate import Accuracy, Classify, episode_accuracies, mean_and_interval, summarise
from training.evaluation.tasks import Task

Verdict = Literal["ahead", "inside", "behind"]


@dataclass(frozen=True)
class Measured:
    """Accuracies of one head.

    Attributes:
        episodes: (n,) share of right answers in each episode.
        unconverged: fits that stopped short of their tolerance.
    """

    accuracy: Accuracy
    episodes: NDArray[np.float64]
    unconverged: int


@dataclass(frozen=True)
class Difference:
    """Mean over episodes of one head's accuracy less another's, and half its 95% interval."""

    mean: float
    interval: float

    @property
    def verdict(self) -> Verdict:
        """Where the first head is: ahead or behind by more than the interval, or inside it."""
        if abs(self.mean) <= self.interval:
            return "inside"
        return "ahead" if self.mean > 0.0 else "behind"

    def __str__(self) -> str:
        """In percent."""
        mean = f"{100 * self.mean:+.2f}"
        return f"{'0.00' if mean in {'-0.00', '+0.00'} else mean} +- {100 * self.interval:.2f}"


def measure(
    embeddings: NDArray[np.float32], data: ImageSet, classify: Classify, task: Task, episodes: int, seed: int
) -> Measured:
    """One head on the episodes of a seed; fits that do not converge are counted, not printed."""
    accuracies, unconverged = _counting_unconverged(
        lambda: episode_accuracies(embeddings, data, classify, task, episodes, seed)
    )
    return Measured(summarise(accuracies, task, seed), accuracies, unconverged)


def difference(one: Measured, other: Measured) -> Difference:
    """How far `one` is ahead of `other` on the same episodes."""
    return Difference(*mean_and_interval(one.episodes - other.episodes))


def _counting_unconverged(run: Callable[[], NDArray[np.float64]]) -> tuple[NDArray[np.float64], int]:
    # Filters belong to the process, so this holds for the threads of the run as well.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        result = run()
    others = [w for w in caught if not issubclass(w.category, ConvergenceWarning)]
    for other in others:
        warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    return result, len(caught) - len(others)
