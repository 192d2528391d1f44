"""What the training loop asks of an algorithm."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from benchmarks.rivals.tasks import Task
from training.data import Episode
from training.data.resident import ResidentImages

SCALAR_RATE = 10.0
"""Learning rate of parameters that are single numbers (log T, scales, regularisation), relative to that of weights."""


@dataclass(frozen=True)
class Accuracies:
    """Share of an episode's queries that were classified rightly, for n episodes.

    Attributes:
        usual: (n,) as the algorithm's authors measure it.
        alone: (n,) with every query classified as if it were the only one. The same array, unless the algorithm's
            batch norm takes its statistics from all queries of an episode together.
    """

    usual: NDArray[np.float64]
    alone: NDArray[np.float64]


class Rival(nn.Module, ABC):
    """A meta-learning algorithm and its meta-parameters."""

    @abstractmethod
    def accumulate(self, tasks: Sequence[Task]) -> float:
        """Add the meta-gradient of the tasks' mean query loss to the parameters' `grad`; return that loss."""

    @abstractmethod
    def accuracies(self, images: ResidentImages, episodes: Sequence[Episode]) -> Accuracies:
        """Adapt to the support images of each episode and classify its queries."""

    def learned(self) -> dict[str, float]:
        """Meta-parameters that are single numbers, by name."""
        return {}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Groups for a torch optimiser: weights, and single numbers; `rate` multiplies the learning rate."""
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return [
            {"params": [p for p in parameters if p.ndim > 0], "rate": 1.0},
            {"params": [p for p in parameters if p.ndim == 0], "rate": SCALAR_RATE},
        ]
