"""What a bundle needs to know of an ONNX model: given by the caller, or found in its graph."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from onnx import ModelProto, TensorProto, ValueInfoProto
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from comln_serve.imaging.preprocessing import LEAST_SIDE, MOST_SIDE
from training.backbones.onnx_graph import Layout, describe_value, image_input, load_graph, read_graph
from training.backbones.onnx_guess import (
    Guess,
    declared_axes,
    guess_channels,
    guess_image_size,
    guess_layout,
    guess_normalisation,
    guess_output,
)
from training.backbones.onnx_reduction import suitable_reduction
from training.backbones.onnx_trial import values_of
from training.bundles.universal_head import UNIVERSAL_HEAD_CONFIG
from training.config import Config, ConfigError
from training.config.backbone import Reduction
from training.errors import BackboneError

Colour = Literal["rgb", "bgr", "grey"]
Normalisation = Literal["imagenet", "half", "none", "raw"]
MeanAndStd = tuple[tuple[float, ...], tuple[float, ...]]

AS_GIVEN = "as given"
"""The reason of what the caller gave."""

_NORMALISATIONS: dict[Normalisation, MeanAndStd] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5,) * 3, (0.5,) * 3),
    "none": ((0.0,) * 3, (1.0,) * 3),
    "raw": ((0.0,) * 3, (1 / 255,) * 3),
}
# Shares of the square in which support images are embedded besides the crop that predictions see: those of the photo
# bundle. With two networks and four kinds of images they gained accuracy or changed nothing (docs/backbones.md).
_SUPPORT_VIEWS = (1.0, 0.65)


@dataclass(frozen=True)
class WrapOptions:
    """Properties of the model that the caller gives; None: found in the graph.

    Attributes:
        mean, std: of pixel values in [0, 1], in the order of the graph's channels; a single value is for all channels.
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


def inspect_model(path: Path, options: WrapOptions) -> tuple[Config, tuple[Finding, ...]]:
    """Find the input format of the ONNX file at `path`, and the tensor that is its embedding.

    Returns:
        Everything a bundle of the model needs: as a recipe, and as findings for a person to check.

    Raises:
        BackboneError: not a usable graph, or a property that neither the graph nor an option gives;
            messages name keys of a recipe.
        ConfigError: options that contradict the graph or each other.
    """
    model = load_graph(path)
    value = image_input(path, model.graph)
    layout = _layout(path, value, options.layout)
    size = _image_size(path, value, layout.value, options.image_size)
    pixels, of_pixels = _pixels(path, model, value, layout.value, options)
    channels = 1 if pixels.get("colour") == "grey" else 3
    embedding, of_embedding = _embedding(path, model, layout.value, channels, size.value, options)
    crops, of_crops = _crops(options)
    tree = {
        "data": {
            "kind": "image_folder",
            "preprocessing": {"image_size": size.value, "interpolation": options.interpolation, **crops},
        },
        "backbone": {
            "kind": "onnx",
            "path": str(path.resolve()),
            "layout": layout.value,
            "normalise": "l2",
            **pixels,
            **embedding,
        },
        "head": UNIVERSAL_HEAD_CONFIG.model_dump(),
        "updates": 0,
    }
    findings = (
        Finding("layout", layout.value, layout.reason, "--layout"),
        Finding("image size", str(size.value), size.reason, "--image-size"),
        *of_pixels,
        *of_embedding,
        *of_crops,
    )
    try:
        return Config.model_validate(tree), findings
    except ValidationError as error:
        raise ConfigError("; ".join(map(_problem, error.errors()))) from error


def _problem(found: ErrorDetails) -> str:
    """An error of Pydantic, with the key of the recipe; of a check of several keys only what the check says."""
    message = found["msg"].removeprefix("Value error, ")
    if isinstance(found["input"], dict):
        return message
    key = ".".join(part for part in map(str, found["loc"]) if not part.isdecimal())
    return f"{key}: {message}, got {found['input']!r}"


def _layout(path: Path, value: ValueInfoProto, given: Layout | None) -> Guess[Layout]:
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
    if given is not None:
        if is_bytes != (given == "as_is"):
            right = "as_is" if is_bytes else "nchw or nhwc"
            raise ConfigError(f"--layout {given}: {takes}, which needs --layout {right}")
        return Guess(given, AS_GIVEN)
    if guess is None:
        raise BackboneError(
            f"{path}: {takes}, of which neither the second axis alone nor the last alone is 1 or "
            "3. Say where the channels are: --layout nchw or --layout nhwc"
        )
    return guess


def _image_size(path: Path, value: ValueInfoProto, layout: Layout, given: int | None) -> Guess[int]:
    guess = guess_image_size(path, value, layout)
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
        return guess
    if guess is not None and guess.value != given:
        raise ConfigError(
            f"--image-size {given}: the graph takes images of {guess.value} px "
            f"({describe_value(value)}). Leave the flag out, or export the model for {given} px"
        )
    return Guess(given, AS_GIVEN)


def _pixels(
    path: Path, model: ModelProto, value: ValueInfoProto, layout: Layout, options: WrapOptions
) -> tuple[dict[str, Any], list[Finding]]:
    """The recipe's keys for the conversion of pixels, and the findings; none for a graph that converts them itself."""
    if layout == "as_is":
        _refuse_pixel_options(options)
        return {}, []
    colour = _colour(path, value, layout, options.colour)
    normalisation, (mean, std) = _normalisation(model, value.name, colour.value, options)
    return {"colour": colour.value, "mean": mean, "std": std}, [
        Finding("colour", colour.value, colour.reason, "--colour"),
        Finding("normalisation", normalisation.value, normalisation.reason, "--normalisation, or --mean and --std"),
    ]


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


def _colour(path: Path, value: ValueInfoProto, layout: Layout, given: Colour | None) -> Guess[Colour]:
    channels = guess_channels(value, layout)
    if channels not in (None, 1, 3):
        raise BackboneError(
            f"{path}: with layout {layout} the graph takes images of {channels} channels "
            f"({describe_value(value)}); 1 (grey) or 3 (colour) are allowed. Check --layout"
        )
    if given is not None:
        if channels is not None and (channels == 1) != (given == "grey"):
            allowed = "grey" if channels == 1 else "rgb or bgr"
            raise ConfigError(
                f"--colour {given}: the graph takes images of {channels} "
                f"channel{'s' * (channels > 1)}, which are --colour {allowed}"
            )
        return Guess(given, AS_GIVEN)
    if channels == 1:
        return Guess("grey", "the input has one channel")
    return Guess("rgb", "ASSUMED: a graph does not say; models made with OpenCV or Caffe often take bgr")


def _normalisation(
    model: ModelProto, image: str, colour: Colour, options: WrapOptions
) -> tuple[Guess[str], MeanAndStd]:
    """The normalisation in words, and its mean and std."""
    if (options.mean is None) != (options.std is None):
        raise ConfigError("--mean and --std are given together, or left out together")
    if options.mean is not None and options.std is not None:
        if options.normalisation is not None:
            raise ConfigError("give --normalisation, or --mean and --std, not both")
        mean, std = (_per_channel(v, colour) for v in (options.mean, options.std))
        return Guess(_shown(mean, std), AS_GIVEN), (mean, std)
    name, reason = options.normalisation, AS_GIVEN
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
    return Guess(f"{name} ({_shown(mean, std)})", reason), (mean, std)


def _per_channel(values: tuple[float, ...], colour: Colour) -> tuple[float, ...]:
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


def _embedding(
    path: Path, model: ModelProto, layout: Layout, channels: int, image_size: int, options: WrapOptions
) -> tuple[dict[str, Any], list[Finding]]:
    """The recipe's keys for the embedding's tensor and how it becomes one vector, and the findings."""
    output = guess_output(path, model) if options.output is None else Guess(options.output, AS_GIVEN)
    keys: dict[str, Any] = {"output": output.value}
    findings = [Finding("embedding", output.value, output.reason, "--output")]
    reduction = _reduction(path, model, layout, channels, image_size, output.value, options.reduction)
    if reduction is not None:
        keys["reduction"] = reduction.value
        findings.append(Finding("reduction", reduction.value, reduction.reason, "--reduction"))
    if options.pooling is not None:
        if len(options.pooling) > 2:
            raise ConfigError(f"--pooling takes SIGMA or SIGMA,POWER; got {len(options.pooling)} numbers")
        keys["pooling"] = dict(zip(("sigma", "power"), options.pooling, strict=False))
        findings.append(Finding("pooling", _listed(options.pooling), AS_GIVEN, "--pooling"))
    return keys, findings


def _reduction(
    path: Path, model: ModelProto, layout: Layout, channels: int, image_size: int, output: str, given: Reduction | None
) -> Guess[Reduction] | None:
    """How an embedding of several vectors becomes one; None if it is one."""
    if given is not None:
        return Guess(given, AS_GIVEN)
    if declared_axes(model, output) == 2:
        return None
    (value,) = values_of(read_graph(path, layout, channels, image_size, output), [output], path)
    found = suitable_reduction(value.shape[1:], layout)
    return None if found is None else Guess(*found)


def _crops(options: WrapOptions) -> tuple[dict[str, Any], list[Finding]]:
    """The recipe's keys for what is cropped of an image, and the findings; none for images that are not cropped."""
    share = 1.0 if options.crop_fraction is None else options.crop_fraction
    views = options.support_views
    if views is None:
        views = tuple(view for view in _SUPPORT_VIEWS if view != share) if options.resize == "crop" else ()
    keys = {"resize": options.resize, "crop_fraction": share, "support_views": views}
    if options.resize != "crop":
        return keys, []
    of_share = of_views = AS_GIVEN
    if options.crop_fraction is None:
        of_share = (
            "ASSUMED: the whole square; a graph does not say which share of it the network was evaluated on, 0.875 "
            "being common"
        )
    if options.support_views is None:
        of_views = (
            "further crops of each support image, which mostly gain accuracy; adapting takes "
            f"{1 + len(views)} times as long"
        )
    return keys, [
        Finding("crop", f"{share:g}", of_share, "--crop-fraction"),
        Finding("support views", _listed(views) or "none", of_views, "--support-views"),
    ]


def _listed(numbers: tuple[float, ...]) -> str:
    """Numbers as an option takes them."""
    return ",".join(f"{number:g}" for number in numbers)
