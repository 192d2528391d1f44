"""Accuracies and differences between them: means over episodes with 95% intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle.manifest import Shots, describe_task

Verdict = Literal["ahead", "inside", "behind"]


@dataclass(frozen=True)
class Estimate:
    """Mean of an accuracy and half the width of its 95% interval."""

    mean: float
    interval: float

    def __str__(self) -> str:
        """In percent."""
        return f"{100 * self.mean:.2f} +- {100 * self.interval:.2f}"


class Difference(Estimate):
    """Mean over episodes of one head's accuracy minus another's, and half its 95% interval."""

    @property
    def verdict(self) -> Verdict:
        """Where the first head is: ahead or behind by more than the interval, or inside it."""
        if abs(self.mean) <= self.interval:
            return "inside"
        return "ahead" if self.mean > 0.0 else "behind"

    def __str__(self) -> str:
        """In percent, with a sign unless it rounds to zero."""
        mean = f"{100 * self.mean:+.2f}"
        return f"{'0.00' if mean in {'-0.00', '+0.00'} else mean} +- {100 * self.interval:.2f}"


@dataclass(frozen=True)
class Accuracy:
    """Mean accuracy over the episodes of a task, and half the width of its 95% interval."""

    ways: int
    shots: Shots
    queries: int
    episodes: int
    seed: int
    mean: float
    interval: float

    @property
    def estimate(self) -> Estimate:
        """Mean and interval alone."""
        return Estimate(self.mean, self.interval)

    def __str__(self) -> str:
        return (
            f"{describe_task(self.ways, self.shots)}: {self.estimate} % ({self.episodes} episodes, "
            f"{self.queries} queries a class, seed {self.seed})"
        )


_Estimate = TypeVar("_Estimate", Estimate, Difference)


def mean_and_interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean of (n,) values and half the width of its 95% interval, 1.96 sd / sqrt(n); infinite for n = 1."""
    spread = float(values.std(ddof=1)) if len(values) > 1 else math.inf
    return float(values.mean()), 1.96 * spread / math.sqrt(len(values))


def mean_over(estimates: Sequence[_Estimate]) -> _Estimate:
    """The mean of independent estimates, such as those of several data sets, with its interval."""
    return type(estimates[0])(
        sum(found.mean for found in estimates) / len(estimates),
        math.hypot(*(found.interval for found in estimates)) / len(estimates),
    )


def mean_by_head(data_sets: Sequence[Mapping[str, _Estimate]]) -> dict[str, _Estimate]:
    """The mean over data sets for each head that was measured on all of them."""
    common = [head for head in data_sets[0] if all(head in found for found in data_sets)]
    return {head: mean_over([found[head] for found in data_sets]) for head in common}
