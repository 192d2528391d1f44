"""Validation during training."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from training.data.several import Data, by_name
from training.errors import DivergedError
from training.evaluation.evaluate import evaluate
from training.evaluation.tasks import Task
from training.model import MetaModel
from training.results.accuracy import Accuracy


@dataclass(frozen=True)
class Validated:
    """Accuracy on one task of one data set; `data` is its name, None if it is the only one."""

    data: str | None
    accuracy: Accuracy

    @property
    def mean(self) -> float:
        return self.accuracy.mean

    def record(self) -> dict[str, Any]:
        """Plain values, for checkpoints and the log; with "data" if the data set has a name."""
        return vars(self.accuracy) | ({} if self.data is None else {"data": self.data})

    def __str__(self) -> str:
        return str(self.accuracy) if self.data is None else f"{self.data}, {self.accuracy}"


def validate(model: MetaModel, data: Data) -> list[Validated]:
    """Accuracy on the configured tasks of each data set, always on the same episodes."""
    settings, head = model.config.validation, model.head()
    results: list[Validated] = []
    for name, images in by_name(data).items():
        embedded = images.embedded(model.embed)
        if not np.isfinite(embedded.images).all():
            raise DivergedError
        for ways, shots in settings.tasks:
            task = Task(ways, shots, settings.queries)
            accuracy = evaluate(embedded, head, task, settings.episodes)
            results.append(Validated(name, accuracy))
    return results
