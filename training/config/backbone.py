"""Section `backbone`: the embedding network f_Phi."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from training.config.files import is_path
from training.config.section import Count, Positive, Section

Reduction = Literal["none", "mean", "first"]


class DropBlockConfig(Section):
    """DropBlock after the last two blocks of resnet12, in training only.

    Attributes:
        rate: final share of the positions that are dropped.
        block_size: side of a dropped block, in positions of the feature map.
        updates: number of updates over which the rate grows from 0.
    """

    rate: Annotated[float, Field(gt=0, lt=1)] = 0.1
    block_size: Count = 5
    updates: Count = 40_000


class ReadoutConfig(Section):
    """How conv4 makes an embedding of its last feature map (`training.backbones.conv4.Readout`).

    Attributes:
        power: p of sign(x) |x|^p.
        blur: weight of a neighbour beside 1 of the position itself, in a row and in a column, and its square of a
            diagonal one; 0: no blur.
        maximum: appends each channel's maximum over the positions, with this length beside the map's 1; 0: none.
    """

    power: Annotated[float, Field(ge=1, le=4)] = 1.0  # below 1 the gradient is infinite at 0
    blur: Annotated[float, Field(ge=0, le=1)] = 0.0
    maximum: Annotated[float, Field(ge=0, le=4)] = 0.0


class PoolingConfig(Section):
    """The pooling of feature maps with the most weight in the centre (`training.backbones.pooling`).

    Attributes:
        sigma: standard deviation of the weights' Gaussian, as a share of the map's side.
        power: of the power mean over positions; 1: the mean. 2 gives strong activations more weight, for maps after a
            ReLU: negative numbers count as 0. It applies to the network's last feature map; those of `layers` always
            have power 1.
    """

    sigma: Annotated[Positive, Field(ge=0.05)]
    power: Annotated[float, Field(ge=1, le=4)] = 1.0


class BackboneConfig(Section):
    """The embedding network f_Phi.

    Attributes:
        kind: "conv4": four blocks of 3x3 convolution, batch norm, ReLU, 2x2 max-pool. "resnet12":
            four residual blocks of three 3x3 convolutions. "torchvision": one of its classifiers
            without the last layer. "timm": one of timm's networks without its classifier. "onnx":
            an ONNX file, frozen. "identity": the data are already embeddings.
        channels: width of every block of conv4; width of the first block of resnet12, whose other
            blocks are 2.5, 5 and 10 times as wide.
        last_relu: conv4: whether the last block ends with its ReLU, as the paper's does. Without it embeddings have
            negative numbers too, which suits cosines (`pretraining.classifier`).
        readout: conv4: a power, a blur and the maxima of the last feature map; null: it is flattened, as in the paper.
        global_pooling: resnet12: the embedding is the mean over the last block's positions.
        drop_block: resnet12: regularisation by DropBlock; null: none.
        architecture: torchvision: the name in `torchvision.models`, such as resnet18. timm: the
            name in `timm.list_models()`, such as tf_efficientnet_lite0.
        weights: null (random), or the path of a state dict (.pt, .pth or .safetensors).
            torchvision: also DEFAULT or another name of the architecture's published weights.
        layers: torchvision, timm: names of layers inside the network, such as blocks.6, whose
            feature maps (batch, channels, height, width), averaged over positions, are appended to
            the network's own embedding. Each part is divided by its norm.
        pooling: torchvision, timm, onnx: replaces the mean over positions of the last feature map and of those of
            `layers`; null: the mean.
        warm_start: conv4, resnet12: a bundle of the same network whose weights training starts from; null:
            random weights. A relative path is resolved like `path`.
        frozen: conv4 with `warm_start`, torchvision, timm: the weights do not change; only the head is learned. ONNX
            graphs and embeddings are always frozen.
        path: onnx: the file. A relative path is relative to the recipe, or in an override to the
            working folder. The same holds for a path in `weights`.
        layout: onnx: the graph's input. "nchw" or "nhwc": normalised floats, channels second or
            last. "as_is": uint8 RGB (B, S, S, 3), like a bundle's backbone.
        output: onnx: the tensor that is the embedding, which need not be an output of the graph; null: the only output.
        reduction: onnx: makes one vector of an output that has several for an image: the "mean" over a feature map's
            positions or a transformer's tokens, or its "first" token, for the class; "none": they are put together.
        colour: channels of the first layer: "rgb", "bgr" or "grey".
        mean, std: normalisation of pixel values in [0, 1], in the order of the channels. Default:
            those of torchvision's named weights; 0.5 and 0.25 for a network with random weights.
        embedding_size: expected size; required for "identity", checked for the others if given.
        mirror: the embedding is the mean of those of the image and of its mirror image, in evaluation and in the
            bundle. Doubles the computation; for images whose mirror image has the same class.
        normalise: "l2": embeddings are divided by their norm, before `scale` applies.
        scale: "sqrt_d": embeddings are divided by the square root of their size.
    """

    kind: Literal["conv4", "resnet12", "torchvision", "timm", "onnx", "identity"] = "conv4"
    channels: Count = 64
    last_relu: bool = True
    readout: ReadoutConfig | None = None
    global_pooling: bool = False
    drop_block: DropBlockConfig | None = None
    architecture: str | None = None
    weights: str | None = None
    layers: tuple[str, ...] = ()
    pooling: PoolingConfig | None = None
    warm_start: str | None = None
    frozen: bool = False
    path: str | None = None
    layout: Literal["nchw", "nhwc", "as_is"] = "nchw"
    output: str | None = None
    reduction: Reduction = "none"
    colour: Literal["rgb", "bgr", "grey"] = "rgb"
    mean: tuple[float, ...] | None = None
    std: tuple[Positive, ...] | None = None
    embedding_size: Count | None = None
    mirror: bool = False
    normalise: Literal["none", "l2"] = "none"
    scale: Literal["none", "sqrt_d"] = "none"

    @property
    def channels_in(self) -> int:
        """Channels of the first layer."""
        return 1 if self.colour == "grey" else 3

    @property
    def is_frozen(self) -> bool:
        """Whether the network has no parameters to learn."""
        return self.frozen or self.kind in {"onnx", "identity"}

    @property
    def weights_file(self) -> str | None:
        """`weights` if it is a path, and not the name of published weights."""
        return self.weights if self.weights is not None and is_path(self.weights) else None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for kinds, key in ((kinds, key) for kinds, keys in _KEYS_OF_KINDS.items() for key in keys):
            given = getattr(self, key) != BackboneConfig.model_fields[key].default
            if given and self.kind not in kinds:
                allowed = " or ".join(f'"{kind}"' for kind in kinds)
                raise ValueError(f'{key} is for kind {allowed}, not for "{self.kind}"')
        for key, kinds in _NEEDED.items():
            if self.kind in kinds and getattr(self, key) is None:
                raise ValueError(f'{key} is needed by kind "{self.kind}"')
        self._check_normalisation()
        if self.frozen and self.kind == "conv4" and self.warm_start is None:
            raise ValueError("a frozen conv4 needs warm_start: random weights would stay random")
        if self.kind == "resnet12" and self.channels % 2:
            raise ValueError(f"resnet12 needs an even number of channels, got {self.channels}")
        if self.kind in _LIBRARIES:
            self._check_library()
        return self

    def _check_library(self) -> None:
        if self.frozen and self.weights is None:
            raise ValueError("frozen needs weights: random ones would stay random")
        if self.colour == "grey":
            raise ValueError(f'{self.kind}\'s networks take three channels, not colour "grey"')
        if self.kind == "timm" and self.weights is not None and self.weights_file is None:
            raise ValueError(
                f'weights {self.weights!r}: kind "timm" downloads nothing and takes the path of a '
                "state dict, such as ./weights.pth"
            )

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
            raise ValueError(f"mean and std need {self.channels_in} values for colour {self.colour!r}")
        elif self.kind == "onnx" and self.layout == "as_is":
            raise ValueError("mean and std do not apply to a graph that is taken as_is")


_TRAINED = ("conv4", "resnet12")
_LIBRARIES = ("torchvision", "timm")
_KEYS_OF_KINDS = {
    _TRAINED: ("channels", "warm_start"),
    ("conv4",): ("last_relu", "readout"),
    ("resnet12",): ("global_pooling", "drop_block"),
    _LIBRARIES: ("architecture", "weights", "layers"),
    (*_LIBRARIES, "onnx"): ("pooling",),
    ("conv4", *_LIBRARIES, "onnx", "identity"): ("frozen",),
    ("onnx",): ("path", "layout", "output", "reduction"),
    (*_TRAINED, *_LIBRARIES, "onnx"): ("colour", "mean", "std", "mirror"),
}
_NEEDED = {"architecture": _LIBRARIES, "path": ("onnx",), "embedding_size": ("identity",)}
