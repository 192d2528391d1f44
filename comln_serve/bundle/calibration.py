"""`calibration` of a bundle: temperature and threshold of `unknown`, measured on unseen classes."""

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

Share = Annotated[float, Field(ge=0, le=1)]
Range = tuple[Annotated[FiniteFloat, Field(ge=1)], Annotated[FiniteFloat, Field(ge=1)]]

# Bound of |ln(temperature)|: beyond it exp() is as good as infinite or 0.
_LARGEST_LOG = 20.0


class Part(BaseModel):
    """A part of `bundle.json`. Keys that later format versions added are left out if they have their default."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskLaw(Part):
    """A law for tasks of N classes with k images each: constant + shots ln(k) + ways ln(N)."""

    constant: FiniteFloat
    shots: FiniteFloat
    ways: FiniteFloat


class Suspects(Part):
    """How well wrong support labels were found; see `comln_serve.report.suspects`.

    Attributes:
        share: of the labels that were replaced by wrong ones.
        auroc: the score's area under the curve, wrong against right labels, mean over episodes.
        interval: half of auroc's 95% interval.
        precision: share of the listed images whose label was wrong, null if none was listed.
        recall: share of the wrong labels that were listed.
    """

    share: Share
    auroc: Share
    interval: FiniteFloat
    precision: Share | None
    recall: Share


class CalibrationTask(Part):
    """Measurements on one kind of task, on other episodes than those the laws were fitted to.

    Attributes:
        ece_before, ece_after: expected calibration error in 15 bins, of the plain softmax and at
            the fitted temperature.
        nll_before, nll_after: mean cross-entropy of the queries, likewise.
        strangers: number of open-set classes: outside the task, their images should be unknown.
        auroc: the similarity's area under the curve, images of the task's classes against those of
            the open-set classes, mean over episodes.
        interval: half of auroc's 95% interval.
        known_refused, strangers_refused: shares of both kinds of images called unknown at the
            served threshold.
        suspects: null if classes have a single image.
        data: name of the data set, measured with the laws fitted on all others; null if there is only one data set.
    """

    ways: int
    shots: int | tuple[int, int]
    ece_before: Share
    ece_after: Share
    nll_before: FiniteFloat
    nll_after: FiniteFloat
    strangers: int
    auroc: Share
    interval: FiniteFloat
    known_refused: Share
    strangers_refused: Share
    suspects: Suspects | None
    data: Annotated[str | None, Field(exclude_if=lambda name: name is None)] = None


class Calibration(Part):
    """Temperature and threshold of `unknown` by task, and how they were measured.

    Attributes:
        log_temperature: law of ln(temperature); logits are divided by the temperature.
        unknown: law of the similarity below which an image is unknown, for classifiers with too few
            images to derive their own.
        unknown_relative: whether the similarity of support images to their nearest other class is to be added to that
            law. It differs between kinds of images, as the threshold does.
        shots, ways: the measured range; tasks outside of it use the law's value at its ends.
        split, queries, episodes, seed, command: what reproduces the measurement.
    """

    log_temperature: TaskLaw
    unknown: TaskLaw
    unknown_relative: Annotated[bool, Field(exclude_if=lambda relative: not relative)] = False
    shots: Range
    ways: Range
    split: str
    queries: int
    episodes: int
    seed: int
    command: str
    tasks: tuple[CalibrationTask, ...]

    def temperature_of(self, examples: Sequence[int] | NDArray[np.integer]) -> float:
        """Temperature for a classifier with `examples` (N,) support images of each class."""
        log = self._at(self.log_temperature, examples)
        return math.exp(max(-_LARGEST_LOG, min(log, _LARGEST_LOG)))

    def unknown_of(self, examples: Sequence[int] | NDArray[np.integer], nearest_other_class: float) -> float:
        """Similarity below which an image is unknown, for such a classifier.

        Args:
            nearest_other_class: of its report; it matters if `unknown_relative`.
        """
        return self._at(self.unknown, examples) + (nearest_other_class if self.unknown_relative else 0.0)

    def _at(self, law: TaskLaw, examples: Sequence[int] | NDArray[np.integer]) -> float:
        ways, shots = float(len(examples)), shots_of(examples)
        shots = min(max(shots, self.shots[0]), self.shots[1])
        ways = min(max(ways, self.ways[0]), self.ways[1])
        return law.constant + law.shots * math.log(shots) + law.ways * math.log(ways)


def shots_of(examples: Sequence[int] | NDArray[np.integer]) -> float:
    """Harmonic mean of the classes' images (N,), as the classes with few images matter most."""
    return len(examples) / sum(1.0 / count for count in examples)
