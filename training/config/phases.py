"""Sections `pretraining`, `episodes`, `optimiser` and `validation`: how a run is trained and measured."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from training.config.section import Count, NonNegative, Positive, Range, Section


class EpisodeConfig(Section):
    """The training episodes.

    Attributes:
        ways, shots: one number, or a range [least, most] from which each update draws its own.
        unequal: share of the updates in which the number of shots is drawn for each class.
        queries: query images of each class. tasks: episodes an update.
        label_smoothing: in the query loss.
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
        steps: instead of the half cosine, [[update, learning rate], ...]: `lr` from that update on.
            `head_lr` changes by the same factors.
        lr: for the backbone and a learned W0. head_lr: for the head's scalars, such as log T.
        weight_decay: for the backbone's convolution weights only, unless `decay_all`.
        decay_all: weight decay also for a learned W0 and the backbone's biases and batch norm, as in the code of
            COMLN's authors. Never for the head's scalars.
        clip_head: largest norm of the gradient of the head's scalars in an update.
    """

    lr: Positive = 0.1
    head_lr: NonNegative = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: NonNegative = 5e-4
    decay_all: bool = False
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
    """Supervised training of the backbone before the episodes, with a classifier over all classes.

    SGD with Nesterov momentum; the learning rate follows a half cosine to 0 after warm-up.

    Attributes:
        epochs: passes over the training images (and their rotations, where these count).
        classifier: "linear", or "cosine": logits are cosines of features and the classes' weights times a learned
            factor, as in Gidaris and Komodakis, "Dynamic few-shot visual learning without forgetting" (2018).
        teacher: a bundle of a better network. The loss then also asks for the similarities between the images of a
            batch that this network finds (`training.runs.distillation`). A relative path is resolved like
            `backbone.path`.
        warmup: updates over which the learning rate rises from 0.
        validate_every: epochs between validations, with the untrained head.
    """

    epochs: Count
    classifier: Literal["linear", "cosine"] = "linear"
    teacher: str | None = None
    batch_size: Count = 128
    lr: Positive = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: NonNegative = 5e-4
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    warmup: Annotated[int, Field(ge=0)] = 0
    validate_every: Count = 5


class ValidationConfig(Section):
    """How often a run is validated, and on which tasks, (ways, shots) each.

    The checkpoint with the best mean accuracy is kept as the best.
    """

    every: Count = 500
    episodes: Annotated[int, Field(ge=2)] = 200  # one has no interval
    queries: Count = 15
    tasks: Annotated[tuple[tuple[Annotated[int, Field(ge=2)], Count], ...], Field(min_length=1)] = ((5, 1),)
