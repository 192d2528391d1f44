"""The two phases of a run, and how it is measured."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from training.config.section import Count, NonNegative, Positive, Range, Section


class EpisodeConfig(Section):
    """What a training episode looks like.

    Attributes:
        ways, shots: drawn anew for each update, from [least, most] where they are ranges.
        unequal: share of the updates in which every class draws its own number of shots.
        queries: query images of each class. tasks: episodes an update.
        label_smoothing: of the query loss.
    """

    ways: Range = (5, 5)
    shots: Range = (1, 5)
    unequal: Annotated[float, Field(ge=0, le=1)] = 0.0
    queries: Count = 15
    tasks: Count = 1
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _two_classes(self) -> Self:
        if self.ways[0] < 2:
            raise ValueError(f"a task has 2 ways or more, got {self.ways[0]}")
        if self.unequal and self.shots[0] == self.shots[1]:
            raise ValueError(f"unequal needs a range of shots, got {self.shots[0]} alone")
        return self


class OptimiserConfig(Section):
    """SGD with Nesterov momentum; the learning rate follows a half cosine to 0 after warm-up.

    Attributes:
        steps: instead of the half cosine, [[update, learning rate], ...]: the rate from then on.
            log T and log alpha follow in proportion.
        lr: for the backbone and a learned W0. head_lr: for log T and log alpha.
        weight_decay: on the backbone's convolution weights only.
        clip_head: largest gradient norm of (log T, log alpha) in an update.
    """

    lr: Positive = 0.1
    head_lr: NonNegative = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: NonNegative = 5e-4
    clip_head: Positive = 1.0
    warmup: Annotated[int, Field(ge=0)] = 0
    steps: tuple[tuple[Count, Positive], ...] | None = None

    @model_validator(mode="after")
    def _one_course(self) -> Self:
        if self.steps is None:
            return self
        if self.warmup:
            raise ValueError("warmup belongs to the half cosine; leave it out with steps")
        updates = [update for update, _ in self.steps]
        if updates != sorted(set(updates)):
            raise ValueError(f"steps must come at rising updates, got {updates}")
        return self


class PretrainingConfig(Section):
    """Supervised training of the backbone before the episodes: a linear layer over all classes.

    SGD with Nesterov momentum; the learning rate follows a half cosine to 0 after warm-up.

    Attributes:
        epochs: passes over the training images (and their rotations, where these count).
        warmup: updates over which the learning rate rises from 0.
        validate_every: epochs between measurements with prototypes on the validation tasks.
    """

    epochs: Count
    batch_size: Count = 128
    lr: Positive = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: NonNegative = 5e-4
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    warmup: Annotated[int, Field(ge=0)] = 0
    validate_every: Count = 5


class ValidationConfig(Section):
    """How often, and on what, a run is validated; the best checkpoint by mean accuracy is kept."""

    every: Count = 500
    episodes: Count = 200
    queries: Count = 15
    tasks: tuple[tuple[Count, Count], ...] = ((5, 1),)
