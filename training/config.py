"""Everything a training run depends on, as one typed value.

A recipe is this as YAML; it is stored in every checkpoint and in every bundle's manifest.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from comln_serve.bundle.head import Start, Weighting
from comln_serve.imaging import Preprocessing

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class ConfigError(ValueError):
    """A recipe or an override that cannot be used; the message names the key."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DataConfig(_Section):
    """Which images: the classes to train on and those to validate on. See docs/data.md.

    Attributes:
        kind: a data set, whatever form of it there is ("omniglot", "miniimagenet",
            "tieredimagenet", "cifar_fs", "fc100", "cub"), with its standard split; images of your
            own ("image_folder", "image_csv"); or "embeddings" in the format of LEO.
        rotations: omniglot: 90-degree rotations count as classes of their own, in training.
        splits: image_folder: your class lists, a JSON file {split: [classes]} or a file for each
            split, relative to the data; null: <split> folders, or else class_shares.
        class_shares: image_folder and image_csv without splits of their own: shares of the classes
            for train, val and test.
        preprocessing: resize-and-crop policy, carried over into the bundle; not for embeddings.
    """

    kind: Literal[
        "omniglot", "miniimagenet", "tieredimagenet", "cifar_fs", "fc100", "cub",
        "image_folder", "image_csv", "embeddings",
    ]  # fmt: skip
    rotations: bool = False
    splits: str | dict[Literal["train", "val", "test"], str] | None = None
    class_shares: tuple[Fraction, Fraction, NonNegative] = (0.64, 0.16, 0.2)
    preprocessing: Preprocessing = Preprocessing(image_size=84)

    @model_validator(mode="after")
    def _options_of_the_kind(self) -> Self:
        if self.rotations and self.kind != "omniglot":
            raise ValueError(f'rotations are for kind "omniglot", not {self.kind!r}')
        if self.splits is not None and self.kind != "image_folder":
            raise ValueError(f'splits are for kind "image_folder", not {self.kind!r}')
        if "preprocessing" not in self.model_fields_set and self.kind != "embeddings":
            raise ValueError("preprocessing is needed, such as {image_size: 84}")
        return self

    @model_validator(mode="after")
    def _shares_of_a_whole(self) -> Self:
        if not 0.999 <= sum(self.class_shares) <= 1.001:
            raise ValueError(f"class_shares must sum to 1, got {self.class_shares}")
        return self


class AugmentationConfig(_Section):
    """What happens to training images; the default is nothing.

    Attributes:
        crop_padding: crops of the original size from an image padded with this many black pixels.
        flip: half of the images are mirrored.
        jitter: brightness, contrast and saturation change by factors of 1 - jitter to 1 + jitter.
    """

    crop_padding: Annotated[int, Field(ge=0)] = 0
    flip: bool = False
    jitter: Annotated[float, Field(ge=0, lt=1)] = 0.0


class BackboneConfig(_Section):
    """The embedding network f_Phi.

    Attributes:
        kind: "conv4": four blocks of 3x3 convolution, batch norm, ReLU, 2x2 max-pool. "resnet12":
            four residual blocks of three 3x3 convolutions.
        channels: width of every block of conv4; of resnet12's first, the others being 2.5, 5 and
            10 times as wide.
        global_pooling: resnet12: embeddings are the mean over the last block's positions.
        colour: what the first layer sees: "rgb" or "grey".
        mean, std: normalisation of pixel values in [0, 1].
        scale: embeddings are divided by the square root of their size ("sqrt_d"), or not ("none").
    """

    kind: Literal["conv4", "resnet12"] = "conv4"
    channels: Count = 64
    global_pooling: bool = False
    colour: Literal["rgb", "grey"] = "rgb"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[Positive, ...] = (0.25, 0.25, 0.25)
    scale: Literal["none", "sqrt_d"] = "none"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        wanted = 3 if self.colour == "rgb" else 1
        if len(self.mean) != wanted or len(self.std) != wanted:
            raise ValueError(f"mean and std need {wanted} values for colour {self.colour!r}")
        if self.kind == "conv4" and self.global_pooling:
            raise ValueError('global_pooling is for kind "resnet12"')
        if self.kind == "resnet12" and self.channels % 2:
            raise ValueError(f"resnet12 needs an even number of channels, got {self.channels}")
        return self


class HeadConfig(_Section):
    """Start and amount of adaptation; see `comln_serve.bundle.head.Head`.

    Attributes:
        initial_horizon: T before training (log T is learned unless `learn_horizon` is false).
        condition_horizon: log T is learned as an affine function of log M, log N and
            log mean ||phi||^2, so that it can follow the task; `initial_horizon` is of any task.
        initial_alpha: scale of a prototype start before training (log alpha is learned).
    """

    start: Start = "prototype"
    weighting: Weighting = "balanced"
    regularisation: NonNegative = 0.0
    initial_horizon: Positive = 1.0
    learn_horizon: bool = True
    condition_horizon: bool = False
    initial_alpha: Positive = 1.0

    @model_validator(mode="after")
    def _learned_if_conditioned(self) -> Self:
        if self.condition_horizon and not self.learn_horizon:
            raise ValueError("condition_horizon needs learn_horizon")
        return self


def _both_ends(value: object) -> object:
    return (value, value) if isinstance(value, int) else value


def _ordered(value: tuple[int, int]) -> tuple[int, int]:
    if value[0] > value[1]:
        raise ValueError("a range is [least, most]")
    return value


# A range [least, most]; one number stands for itself.
Range = Annotated[tuple[Count, Count], BeforeValidator(_both_ends), AfterValidator(_ordered)]


class EpisodeConfig(_Section):
    """What a training episode looks like.

    Attributes:
        ways, shots: drawn anew for each update, from [least, most] where they are ranges.
        queries: query images of each class. tasks: episodes an update.
        label_smoothing: of the query loss.
    """

    ways: Range = (5, 5)
    shots: Range = (1, 5)
    queries: Count = 15
    tasks: Count = 1
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _two_classes(self) -> Self:
        if self.ways[0] < 2:
            raise ValueError(f"a task has 2 ways or more, got {self.ways[0]}")
        return self


class OptimiserConfig(_Section):
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


class PretrainingConfig(_Section):
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


class ValidationConfig(_Section):
    """How often, and on what, a run is validated; the best checkpoint by mean accuracy is kept."""

    every: Count = 500
    episodes: Count = 200
    queries: Count = 15
    tasks: tuple[tuple[Count, Count], ...] = ((5, 1),)


class Config(_Section):
    """A whole run.

    Attributes:
        updates: of the episodic training. 0 is refused: the head's T is learned there.
        precision: of the backbone's products and activations in training ("bfloat16": automatic
            mixed precision); parameters and the flow are not affected, and bundles hold float32.
        seed: of the first weights, the episodes and the augmentation.
    """

    data: DataConfig
    augmentation: AugmentationConfig = AugmentationConfig()
    backbone: BackboneConfig = BackboneConfig()
    pretraining: PretrainingConfig | None = None
    head: HeadConfig = HeadConfig()
    episodes: EpisodeConfig = EpisodeConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    validation: ValidationConfig = ValidationConfig()
    updates: Count
    precision: Literal["float32", "bfloat16"] = "float32"
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.head.start == "learned":
            least, most = self.episodes.ways
            if least != most:
                raise ValueError(
                    f"a learned start is tied to one number of ways, got {least} to {most}"
                )
            other = [ways for ways, _ in self.validation.tasks if ways != least]
            if other:
                raise ValueError(
                    f"a learned start is tied to {least} ways; validation asks for {other[0]}"
                )
        return self


def load_config(path: Path, overrides: tuple[str, ...] = ()) -> Config:
    """Read a recipe and apply overrides `section.key=value` (the value is YAML).

    Raises:
        ConfigError: unreadable file, unknown key, value out of range.
    """
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the recipe {path}: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"the recipe {path} must be a mapping, found {type(tree).__name__}")
    for override in overrides:
        _apply(tree, override)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        lines = [
            f"  {'.'.join(map(str, item['loc'])) or '(whole recipe)'}: {item['msg']}, "
            f"got {item['input']!r}"
            for item in error.errors()
        ]
        raise ConfigError("\n".join([f"the recipe {path} cannot be used:", *lines])) from error


def _apply(tree: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"an override reads section.key=value, got {override!r}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"the value of {override!r} is not YAML: {error}") from error
    *sections, leaf = key.split(".")
    node = tree
    for section in sections:
        child = node.setdefault(section, {})
        if not isinstance(child, dict):
            raise ConfigError(f"{override!r}: {section!r} is a value, not a section")
        node = child
    node[leaf] = value
