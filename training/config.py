"""Everything a training run depends on, as one typed value.

A recipe is this as YAML; it is stored in every checkpoint and in every bundle's manifest.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

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


class DropBlockConfig(_Section):
    """DropBlock after the last two blocks of resnet12, in training only.

    Attributes:
        rate: share of the positions dropped in the end.
        block_size: side of a dropped block, in positions of the feature map.
        updates: number of updates over which the rate grows from 0.
    """

    rate: Annotated[float, Field(gt=0, lt=1)] = 0.1
    block_size: Count = 5
    updates: Count = 40_000


class BackboneConfig(_Section):
    """The embedding network f_Phi.

    Attributes:
        kind: "conv4": four blocks of 3x3 convolution, batch norm, ReLU, 2x2 max-pool. "resnet12":
            four residual blocks of three 3x3 convolutions. "torchvision": one of its classifiers
            without the last layer. "onnx": a graph from elsewhere, frozen. "identity": the data
            are embeddings already.
        channels: width of every block of conv4; of resnet12's first, the others being 2.5, 5 and
            10 times as wide.
        global_pooling: resnet12: embeddings are the mean over the last block's positions.
        drop_block: resnet12: regularisation by DropBlock; null: none.
        architecture: torchvision: the name in `torchvision.models`, such as resnet18.
        weights: torchvision: null (random), DEFAULT or another name of the architecture's published
            weights, or the path of a state dict (.pt, .pth or .safetensors).
        frozen: torchvision: the weights stay as they are; only the head is learned. Graphs and
            embeddings are always frozen.
        path: onnx: the file. A relative path is relative to the recipe; in an override, to the
            working folder. So is one in `weights`.
        layout: onnx: what the graph takes. "nchw" or "nhwc": normalised floats, channels second or
            last. "as_is": uint8 RGB (B, S, S, 3), as a bundle's backbone does.
        output: onnx: the tensor to take as the embedding, an inner one if need be; null: the only
            output.
        colour: what the first layer sees: "rgb", "bgr" or "grey".
        mean, std: normalisation of pixel values in [0, 1], in the order of the channels. Left out,
            those of torchvision's named weights; 0.5 and 0.25 for a network that starts at random.
        embedding_size: expected size; needed by "identity", checked with the others where given.
        normalise: "l2": embeddings are divided by their norm, before `scale`.
        scale: embeddings are divided by the square root of their size ("sqrt_d"), or not ("none").
    """

    kind: Literal["conv4", "resnet12", "torchvision", "onnx", "identity"] = "conv4"
    channels: Count = 64
    global_pooling: bool = False
    drop_block: DropBlockConfig | None = None
    architecture: str | None = None
    weights: str | None = None
    frozen: bool = False
    path: str | None = None
    layout: Literal["nchw", "nhwc", "as_is"] = "nchw"
    output: str | None = None
    colour: Literal["rgb", "bgr", "grey"] = "rgb"
    mean: tuple[float, ...] | None = None
    std: tuple[Positive, ...] | None = None
    embedding_size: Count | None = None
    normalise: Literal["none", "l2"] = "none"
    scale: Literal["none", "sqrt_d"] = "none"

    @property
    def channels_in(self) -> int:
        """Channels of the first layer."""
        return 1 if self.colour == "grey" else 3

    @property
    def is_frozen(self) -> bool:
        """Whether the network has nothing to learn."""
        return self.frozen or self.kind in {"onnx", "identity"}

    @property
    def weights_file(self) -> str | None:
        """`weights` where it is a path; published weights have plain names."""
        is_path = self.weights is not None and any(mark in self.weights for mark in _PATH_MARKS)
        return self.weights if is_path else None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for key, kinds in _KEYS_OF_KINDS.items():
            given = getattr(self, key) != BackboneConfig.model_fields[key].default
            if given and self.kind not in kinds:
                allowed = " or ".join(f'"{kind}"' for kind in kinds)
                raise ValueError(f'{key} is for kind {allowed}, not for "{self.kind}"')
        for key, kind in _NEEDED.items():
            if self.kind == kind and getattr(self, key) is None:
                raise ValueError(f'{key} is needed by kind "{kind}"')
        self._check_normalisation()
        if self.kind == "resnet12" and self.channels % 2:
            raise ValueError(f"resnet12 needs an even number of channels, got {self.channels}")
        if self.kind == "torchvision" and self.frozen and self.weights is None:
            raise ValueError("frozen needs weights: random ones would stay random")
        if self.kind == "torchvision" and self.colour == "grey":
            raise ValueError('torchvision\'s networks take three channels, not colour "grey"')
        return self

    def _check_normalisation(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std are given together or left out together")
        if self.mean is None or self.std is None:
            foreign = self.kind == "onnx" and self.layout != "as_is"
            if foreign or self.weights_file is not None:
                raise ValueError(
                    "mean and std are needed: those that the network was trained with "
                    "(ImageNet's are [0.485, 0.456, 0.406] and [0.229, 0.224, 0.225])"
                )
        elif not len(self.mean) == len(self.std) == self.channels_in:
            raise ValueError(
                f"mean and std need {self.channels_in} values for colour {self.colour!r}"
            )
        elif self.kind == "onnx" and self.layout == "as_is":
            raise ValueError("mean and std do not apply to a graph that is taken as_is")


# Names of published weights have none of these.
_PATH_MARKS = "./\\"
_TRAINED = ("conv4", "resnet12")
_KEYS_OF_KINDS = {
    "channels": _TRAINED,
    "global_pooling": ("resnet12",),
    "drop_block": ("resnet12",),
    "architecture": ("torchvision",),
    "weights": ("torchvision",),
    "frozen": ("torchvision", "onnx", "identity"),
    "path": ("onnx",),
    "layout": ("onnx",),
    "output": ("onnx",),
    "colour": (*_TRAINED, "torchvision", "onnx"),
    "mean": (*_TRAINED, "torchvision", "onnx"),
    "std": (*_TRAINED, "torchvision", "onnx"),
}
_NEEDED = {"architecture": "torchvision", "path": "onnx", "embedding_size": "identity"}


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
        head = self.head
        if self.backbone.is_frozen and head.start == "zero" and not head.learn_horizon:
            raise ValueError(
                "nothing is left to learn: the backbone is frozen, the start is zero and "
                "head.learn_horizon is false"
            )
        if (self.data.kind == "embeddings") != (self.backbone.kind == "identity"):
            raise ValueError('data.kind "embeddings" and backbone.kind "identity" go together')
        if self.backbone.is_frozen and self.pretraining is not None:
            raise ValueError("a frozen backbone is not trained: leave pretraining out")
        if self.backbone.is_frozen and self.augmentation != AugmentationConfig():
            raise ValueError(
                "a frozen backbone sees every image once, as it is: leave augmentation out"
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
    _resolve_paths(tree, path.parent)
    return _validated(tree, overrides, f"the recipe {path}")


def override_config(config: Config, overrides: tuple[str, ...]) -> Config:
    """Apply overrides `section.key=value` to a run's configuration.

    Raises:
        ConfigError: unknown key, value out of range.
    """
    return _validated(config.model_dump(mode="json"), overrides, "the run's recipe, overridden,")


def _validated(tree: dict[str, Any], overrides: tuple[str, ...], what: str) -> Config:
    for override in overrides:
        _apply(tree, override)
    _resolve_paths(tree, Path.cwd())
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        lines = [
            f"  {'.'.join(map(str, item['loc'])) or '(whole recipe)'}: {item['msg']}, "
            f"got {item['input']!r}"
            for item in error.errors()
        ]
        raise ConfigError("\n".join([f"{what} cannot be used:", *lines])) from error


def _resolve_paths(tree: dict[str, Any], base: Path) -> None:
    """Make the files that the backbone names absolute, taking relative paths from `base`."""
    backbone = tree.get("backbone")
    if not isinstance(backbone, dict):
        return
    section = cast("dict[str, Any]", backbone)
    for key in ("path", "weights"):
        value = section.get(key)
        if isinstance(value, str) and (key == "path" or any(mark in value for mark in _PATH_MARKS)):
            section[key] = str((base / Path(value).expanduser()).resolve())


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
