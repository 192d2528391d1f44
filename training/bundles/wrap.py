"""Makes a bundle from an ONNX model without data or training, with a head for any network."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from comln_serve.imaging.preprocessing import LEAST_SIDE, MOST_SIDE
from training.backbones.onnx_builder import bundle_graph
from training.backbones.onnx_file import OnnxFile
from training.backbones.onnx_graph import Layout, describe_value, image_input, load_graph, read_graph
from training.backbones.onnx_guess import (
    declared_axes,
    guess_channels,
    guess_image_size,
    guess_layout,
    guess_normalisation,
    guess_output,
    makes_probabilities,
)
from training.backbones.onnx_reduction import suitable_reduction
from training.backbones.onnx_trial import values_of
from training.backbones.pixel_format import PixelFormat, default_normalisation
from training.bundles.network import Network
from training.bundles.universal_head import UNIVERSAL_HEAD, universal_head_config
from training.bundles.writer import About, Origin, write_bundle
from training.config import Config, ConfigError
from training.config.backbone import Reduction
from training.errors import BackboneError

Colour = Literal["rgb", "bgr", "grey"]
Normalisation = Literal["imagenet", "half", "none", "raw"]
MeanAndStd = tuple[tuple[float, ...], tuple[float, ...]]

_NORMALISATIONS: dict[Normalisation, MeanAndStd] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5,) * 3, (0.5,) * 3),
    "none": ((0.0,) * 3, (1.0,) * 3),
    "raw": ((0.0,) * 3, (1 / 255,) * 3),
}
_TRIAL_IMAGES = 4
# Shares of the square in which support images are embedded besides the crop that predictions see: those of the photo
# bundle. With two networks and four kinds of images they gained accuracy or changed nothing (docs/backbones.md).
_SUPPORT_VIEWS = (1.0, 0.65)


@dataclass(frozen=True)
class WrapOptions:
    """Properties of the model that the caller gives; None: found in the graph.

    Attributes:
        mean, std: of pixel values in [0, 1], in the order of the graph's channels; a single value
            is for all channels.
        normalisation: instead of mean and std: ImageNet's, 0.5 and 0.5 ("half"), values in [0, 1]
            ("none") or 0 to 255 ("raw").
        crop_fraction: of `Preprocessing`; None: the whole square.
        support_views: of `Preprocessing`; None: the whole square and 0.65 of it, if images are cropped.
        pooling: sigma, or sigma and power, of `PoolingConfig`.
        reduction: of `BackboneConfig`.
    """

    layout: Layout | None = None
    output: str | None = None
    colour: Colour | None = None
    image_size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    normalisation: Normalisation | None = None
    resize: Literal["crop", "pad", "stretch"] = "crop"
    crop_fraction: float | None = None
    support_views: tuple[float, ...] | None = None
    pooling: tuple[float, ...] | None = None
    reduction: Reduction | None = None
    interpolation: Literal["bilinear", "bicubic", "lanczos"] = "bilinear"


@dataclass(frozen=True)
class Finding:
    """One property of the model: its value, the reason for it, and the flag that changes it."""

    name: str
    value: str
    reason: str
    flag: str


@dataclass(frozen=True)
class Inspection:
    """Everything a bundle of the model needs: as a recipe, and as findings for a person to check."""

    config: Config
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Wrapped:
    """What a bundle was made of.

    Attributes:
        embedding_size: d.
        warning: why the tensor is no good embedding; None if nothing speaks against it.
    """

    embedding_size: int
    warning: str | None


def inspect_model(path: Path, options: WrapOptions) -> Inspection:
    """Find the input format of the ONNX file at `path`, and the tensor that is its embedding.

    Raises:
        BackboneError: not a usable graph, or a property that neither the graph nor an option gives;
            messages name keys of a recipe.
        ConfigError: options that contradict the graph or each other.
    """
    model = load_graph(path)
    value = image_input(path, model.graph)
    layout = _layout(path, value, options)
    layout_name: Layout = layout.value  # type: ignore[assignment]
    size = _image_size(path, value, layout_name, options)
    findings = [layout, size]
    keys: dict[str, Any] = {"layout": layout_name}
    if layout_name == "as_is":
        _refuse_pixel_options(options)
    else:
        colour = _colour(path, value, layout_name, options)
        normalisation, (mean, std) = _normalisation(model, value.name, colour.value, options)
        findings += [colour, normalisation]
        keys |= {"colour": colour.value, "mean": mean, "std": std}
    output = _output(path, model, options)
    findings.append(output)
    channels = 1 if keys.get("colour") == "grey" else 3
    reduction = _reduction(path, model, layout_name, channels, int(size.value), output.value, options)
    if reduction is not None:
        findings.append(reduction)
        keys["reduction"] = reduction.value
    if options.pooling is not None:
        if len(options.pooling) > 2:
            raise ConfigError(f"--pooling takes SIGMA or SIGMA,POWER; got {len(options.pooling)} numbers")
        keys["pooling"] = dict(zip(("sigma", "power"), options.pooling, strict=False))
        findings.append(
            Finding("pooling", ",".join(f"{value:g}" for value in options.pooling), "as given", "--pooling")
        )
    crop = 1.0 if options.crop_fraction is None else options.crop_fraction
    views = _support_views(options, crop)
    if options.resize == "crop":
        findings.append(_crop_finding(crop, given=options.crop_fraction is not None))
        findings.append(_views_finding(views, given=options.support_views is not None))
    tree = {
        "data": {
            "kind": "image_folder",
            "preprocessing": {
                "image_size": int(size.value),
                "resize": options.resize,
                "crop_fraction": crop,
                "support_views": views,
                "interpolation": options.interpolation,
            },
        },
        "backbone": keys | {"kind": "onnx", "path": str(path.resolve()), "output": output.value, "normalise": "l2"},
        "head": universal_head_config().model_dump(),
        "updates": 0,
    }
    try:
        return Inspection(Config.model_validate(tree), tuple(findings))
    except ValidationError as error:
        raise ConfigError("; ".join(map(_problem, error.errors()))) from error


def _problem(found: ErrorDetails) -> str:
    """An error of Pydantic, with the key of the recipe; of a check of several keys only what the check says."""
    message = found["msg"].removeprefix("Value error, ")
    if isinstance(found["input"], dict):
        return message
    key = ".".join(part for part in map(str, found["loc"]) if not part.isdecimal())
    return f"{key}: {message}, got {found['input']!r}"


def wrap_model(inspection: Inspection, folder: Path, about: About, command: str) -> Wrapped:
    """Write the bundle of an inspected model to `folder`.

    Raises:
        BackboneError: the graph does not run, or its output cannot be an embedding.
        ExportError: the folder is not a bundle, or the bundle's embeddings differ from the model's.
    """
    config = inspection.config
    model = _Model(config)
    warning = _check_embeddings(model)
    origin = Origin(config, command, libraries=("onnx", *Origin.libraries))
    write_bundle(model.network(), UNIVERSAL_HEAD, folder, about, origin)
    return Wrapped(model.file.embedding_size, warning)


class _Model:
    """An inspected model: uint8 images (n, S, S, 3) -> features and embeddings (n, d)."""

    def __init__(self, config: Config) -> None:
        size = config.data.preprocessing.image_size
        self.image_size = size
        self.file = OnnxFile(config.backbone, size)
        self.pixels = None
        if self.file.layout != "as_is":
            self.pixels = PixelFormat(config.backbone.colour, size, *default_normalisation(config.backbone))

    def features(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self.file.features(images if self.pixels is None else self.pixels.planes(images))

    def embed(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        features = self.features(images)
        # In float64: squares of large numbers would overflow.
        lengths = np.linalg.norm(features.astype(np.float64), axis=1, keepdims=True)
        return (features / np.maximum(lengths, 1e-12)).astype(np.float32)

    def network(self) -> Network:
        size = self.file.embedding_size
        graph = bundle_graph(
            self.file.graph, self.pixels, self.file.layout, size, flatten=self.file.flattens, normalise=True, scale=1.0
        )
        return Network(graph, size, self.embed)


def _layout(path: Path, value: ValueInfoProto, options: WrapOptions) -> Finding:
    tensor = value.type.tensor_type
    dims, takes = tensor.shape.dim, f"the graph takes {describe_value(value)}"
    if tensor.elem_type not in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.UINT8):
        raise BackboneError(
            f"{path}: {takes}; images must be float32, float16 or uint8. Export the model with one "
            "of these as its input's type"
        )
    if tensor.HasField("shape") and len(dims) != 4:
        raise BackboneError(
            f"{path}: {takes}; a batch of images has four axes, (batch, 3, S, S) or "
            "(batch, S, S, 3). Export the model with such an input"
        )
    is_bytes = tensor.elem_type == TensorProto.UINT8
    if is_bytes and len(dims) == 4 and dims[3].dim_value not in (0, 3):
        raise BackboneError(
            f"{path}: {takes}; a uint8 input must be (batch, S, S, 3), RGB with channels last. "
            "Put a Transpose before it, or export the model with a float input"
        )
    guess = guess_layout(value)
    if options.layout is not None:
        if is_bytes != (options.layout == "as_is"):
            right = "as_is" if is_bytes else "nchw or nhwc"
            raise ConfigError(f"--layout {options.layout}: {takes}, which needs --layout {right}")
        return Finding("layout", options.layout, "as given", "--layout")
    if guess is None:
        raise BackboneError(
            f"{path}: {takes}, of which neither the second axis alone nor the last alone is 1 or "
            "3. Say where the channels are: --layout nchw or --layout nhwc"
        )
    return Finding("layout", guess.value, guess.reason, "--layout")


def _image_size(path: Path, value: ValueInfoProto, layout: Layout, options: WrapOptions) -> Finding:
    guess = guess_image_size(path, value, layout)
    given = options.image_size
    if given is None:
        if guess is None:
            raise BackboneError(
                f"{path}: the graph takes {describe_value(value)}, images of any size. Give the "
                "size it was trained with, such as --image-size 224"
            )
        if not LEAST_SIDE <= guess.value <= MOST_SIDE:
            raise BackboneError(
                f"{path}: the graph takes images of {guess.value} px ({describe_value(value)}); {LEAST_SIDE} to "
                f"{MOST_SIDE} px are allowed. Export the model for such a size"
            )
        return Finding("image size", str(guess.value), guess.reason, "--image-size")
    if guess is not None and guess.value != given:
        raise ConfigError(
            f"--image-size {given}: the graph takes images of {guess.value} px "
            f"({describe_value(value)}). Leave the flag out, or export the model for {given} px"
        )
    return Finding("image size", str(given), "as given", "--image-size")


def _colour(path: Path, value: ValueInfoProto, layout: Layout, options: WrapOptions) -> Finding:
    channels = guess_channels(value, layout)
    if channels not in (None, 1, 3):
        raise BackboneError(
            f"{path}: with layout {layout} the graph takes images of {channels} channels "
            f"({describe_value(value)}); 1 (grey) or 3 (colour) are allowed. Check --layout"
        )
    if options.colour is not None:
        if channels is not None and (channels == 1) != (options.colour == "grey"):
            allowed = "grey" if channels == 1 else "rgb or bgr"
            raise ConfigError(
                f"--colour {options.colour}: the graph takes images of {channels} "
                f"channel{'s' * (channels > 1)}, which are --colour {allowed}"
            )
        return Finding("colour", options.colour, "as given", "--colour")
    if channels == 1:
        return Finding("colour", "grey", "the input has one channel", "--colour")
    return Finding(
        "colour", "rgb", "ASSUMED: a graph does not say; models made with OpenCV or Caffe often take bgr", "--colour"
    )


def _normalisation(model: ModelProto, image: str, colour: str, options: WrapOptions) -> tuple[Finding, MeanAndStd]:
    flags = "--normalisation, or --mean and --std"
    if (options.mean is None) != (options.std is None):
        raise ConfigError("--mean and --std are given together, or left out together")
    if options.mean is not None and options.std is not None:
        if options.normalisation is not None:
            raise ConfigError("give --normalisation, or --mean and --std, not both")
        mean, std = (_per_channel(v, colour) for v in (options.mean, options.std))
        return Finding("normalisation", _shown(mean, std), "as given", flags), (mean, std)
    name, reason = options.normalisation, "as given"
    if name is None:
        guess = guess_normalisation(model, image)
        if guess is not None:
            name = guess.value
            takes = "0 to 255" if name == "raw" else "0 to 1"
            reason = f"{guess.reason}: normalises itself, and seems to take pixels from {takes}"
        else:
            name = "imagenet"
            reason = (
                "ASSUMED: a graph does not say how its pixels are normalised, and ImageNet's mean "
                "and std are the most common"
            )
    mean, std = _NORMALISATIONS[name]
    if colour == "bgr":
        mean, std = mean[::-1], std[::-1]
    elif colour == "grey":
        mean, std = (round(sum(mean) / 3, 6),), (round(sum(std) / 3, 6),)
    return Finding("normalisation", f"{name} ({_shown(mean, std)})", reason, flags), (mean, std)


def _per_channel(values: tuple[float, ...], colour: str) -> tuple[float, ...]:
    channels = 1 if colour == "grey" else 3
    if len(values) not in (1, channels):
        raise ConfigError(
            f"--mean and --std take {channels} number{'s' * (channels > 1)} for colour {colour}, "
            f"or one for all channels; got {len(values)}: {', '.join(map(str, values))}"
        )
    if not all(map(math.isfinite, values)):
        raise ConfigError(f"--mean and --std take finite numbers, got {values}")
    if max(values) > 1:
        raise ConfigError(
            f"--mean and --std are of pixel values from 0 to 1, got {', '.join(map(str, values))}. Divide numbers for "
            "pixels from 0 to 255 by 255"
        )
    return values * (channels // len(values))


def _shown(mean: tuple[float, ...], std: tuple[float, ...]) -> str:
    parts = [", ".join(f"{value:.4g}" for value in values) for values in (mean, std)]
    return f"mean {parts[0]}; std {parts[1]}"


def _refuse_pixel_options(options: WrapOptions) -> None:
    given = {
        "--colour": options.colour not in (None, "rgb"),
        "--normalisation": options.normalisation is not None,
        "--mean and --std": options.mean is not None or options.std is not None,
    }
    wrong = [flag for flag, is_given in given.items() if is_given]
    if wrong:
        raise ConfigError(
            f"{wrong[0]}: the graph takes uint8 images as they are, in RGB, and normalises them "
            "itself; leave the flag out"
        )


def _output(path: Path, model: ModelProto, options: WrapOptions) -> Finding:
    if options.output is not None:
        return Finding("embedding", options.output, "as given", "--output")
    guess = guess_output(path, model)
    return Finding("embedding", guess.value, guess.reason, "--output")


def _reduction(
    path: Path, model: ModelProto, layout: Layout, channels: int, image_size: int, output: str, options: WrapOptions
) -> Finding | None:
    """How an embedding of several vectors becomes one; None if it is one."""
    if options.reduction is not None:
        return Finding("reduction", options.reduction, "as given", "--reduction")
    if declared_axes(model, output) == 2:
        return None
    (value,) = values_of(read_graph(path, layout, channels, image_size, output), [output], path)
    found = suitable_reduction(value.shape[1:], layout)
    return None if found is None else Finding("reduction", *found, "--reduction")


def _support_views(options: WrapOptions, crop: float) -> tuple[float, ...]:
    if options.support_views is not None:
        return options.support_views
    if options.resize != "crop":
        return ()
    return tuple(share for share in _SUPPORT_VIEWS if share != crop)


def _crop_finding(share: float, *, given: bool) -> Finding:
    reason = "as given"
    if not given:
        reason = (
            "ASSUMED: the whole square; a graph does not say which share of it the network was evaluated on, 0.875 "
            "being common"
        )
    return Finding("crop", f"{share:g}", reason, "--crop-fraction")


def _views_finding(views: tuple[float, ...], *, given: bool) -> Finding:
    value = ",".join(f"{share:g}" for share in views) or "none"
    reason = "as given"
    if not given:
        longer = f"adapting takes {1 + len(views)} times as long"
        reason = f"further crops of each support image, which mostly gain accuracy; {longer}"
    return Finding("support views", value, reason, "--support-views")


def _check_embeddings(model: _Model) -> str | None:
    """Refuse embeddings that do not distinguish images; returns a warning of those that do so badly."""
    shape = (_TRIAL_IMAGES, model.image_size, model.image_size, 3)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    # From dark to bright, so that they also differ in brightness.
    images = (images * np.linspace(0, 1, _TRIAL_IMAGES)[:, None, None, None]).astype(np.uint8)
    embeddings = model.embed(images)
    path, width = model.file.path.name, embeddings.shape[1]
    if width < 2:
        raise BackboneError(
            f"{path}: the embedding has {width} number; 2 or more are needed to tell classes "
            "apart. Name another tensor with backbone.output"
        )
    if float(np.ptp(embeddings, axis=0).max()) == 0.0:
        raise BackboneError(
            f"{path}: the embeddings of all images are the same. Name another tensor with "
            "backbone.output, or check how the images are normalised (--normalisation)"
        )
    return _warning(model, images)


def _warning(model: _Model, images: NDArray[np.uint8]) -> str | None:
    """A warning if the embeddings are probabilities of classes."""
    graph = model.file.graph
    output = graph.graph.output[0].name
    operator = makes_probabilities(graph, output)
    if operator is None:
        features = model.features(images)
        if features.min() < 0 or not np.allclose(features.sum(axis=1), 1, atol=1e-3):
            return None
    why = f"a {operator} makes them" if operator else "none is below 0, and they sum to 1"
    return (
        f"{output} holds probabilities of the classes that the model was trained on ({why}). They tell other classes "
        "apart worse than the features that they are computed from. Name an earlier tensor with --output, or leave "
        "--output out: the tensor is then looked for"
    )
