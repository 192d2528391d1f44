"""How sure a model's answers are on classes it was not trained on, as measured: `calibration`."""

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Range = tuple[Annotated[Finite, Field(ge=1)], Annotated[Finite, Field(ge=1)]]

# exp() of more would overflow, or divide by what is as good as 0.
_LARGEST_LOG = 20.0


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskLaw(_Part):
    """A number that follows the task: constant + shots ln(k) + ways ln(N), k images a class."""

    constant: Finite
    shots: Finite
    ways: Finite


class Suspects(_Part):
    """How support images with wrong labels were found; see `comln_serve.report.suspects`.

    Attributes:
        share: of the labels that were made wrong.
        auroc: mean over episodes of the score's, wrong against right labels, and half its 95%
            interval.
        precision: share of the images listed whose label was wrong, null where none was listed.
        recall: share of the wrong labels that were listed.
    """

    share: Share
    auroc: Share
    interval: Finite
    precision: Share | None
    recall: Share


class CalibrationTask(_Part):
    """What was measured on one kind of task, on other episodes than those the laws were fitted to.

    Attributes:
        ece_before, ece_after: expected calibration error in 15 bins, of the plain softmax and at
            the fitted temperature. nll_before, nll_after: mean cross-entropy of the queries.
        strangers: classes outside the task whose images should be unknown.
        auroc: mean over episodes of the area under the curve of the similarity, images of the
            task's classes against those of strangers, and half its 95% interval.
        known_refused, strangers_refused: share called unknown at the threshold served.
        suspects: null where classes have a single image.
        data: name of the data set, measured with the laws fitted on all others; null where all is
            of one data set.
    """

    ways: int
    shots: int | tuple[int, int]
    ece_before: Share
    ece_after: Share
    nll_before: Finite
    nll_after: Finite
    strangers: int
    auroc: Share
    interval: Finite
    known_refused: Share
    strangers_refused: Share
    suspects: Suspects | None
    # Left out where there is no name: only version 3 has such a key.
    data: Annotated[str | None, Field(exclude_if=lambda name: name is None)] = None


class Calibration(_Part):
    """Temperature and threshold of `unknown`, by task, and how they were found.

    Attributes:
        log_temperature: law of ln(temperature) by which logits are divided.
        unknown: law of the similarity under which an image is unknown, for classifiers whose own
            images are too few to say.
        shots, ways: the range measured; beyond it the laws stay what they are at its ends.
        split, queries, episodes, seed, command: what reproduces it.
    """

    log_temperature: TaskLaw
    unknown: TaskLaw
    shots: Range
    ways: Range
    split: str
    queries: int
    episodes: int
    seed: int
    command: str
    tasks: tuple[CalibrationTask, ...]

    def temperature_of(self, examples: Sequence[int] | NDArray[np.integer]) -> float:
        """For a classifier of classes with `examples` (N,) support images each."""
        log = self._at(self.log_temperature, examples)
        return math.exp(max(-_LARGEST_LOG, min(log, _LARGEST_LOG)))

    def unknown_of(self, examples: Sequence[int] | NDArray[np.integer]) -> float:
        """Similarity under which an image is unknown, for such a classifier."""
        return self._at(self.unknown, examples)

    def _at(self, law: TaskLaw, examples: Sequence[int] | NDArray[np.integer]) -> float:
        ways, shots = float(len(examples)), shots_of(examples)
        shots = min(max(shots, self.shots[0]), self.shots[1])
        ways = min(max(ways, self.ways[0]), self.ways[1])
        return law.constant + law.shots * math.log(shots) + law.ways * math.log(ways)


def shots_of(examples: Sequence[int] | NDArray[np.integer]) -> float:
    """Images a class, of (N,) classes: the harmonic mean, because the scarce ones matter most."""
    return len(examples) / sum(1.0 / count for count in examples)
