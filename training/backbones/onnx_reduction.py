"""One vector of an ONNX graph's output that has several for an image: a feature map, or a transformer's tokens."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from onnx import ModelProto

from training.backbones.onnx_builder import GraphBuilder
from training.backbones.onnx_graph import Layout
from training.backbones.onnx_trial import values_of
from training.config.backbone import Reduction
from training.errors import BackboneError


def reduce_output(model: ModelProto, reduction: Reduction, layout: Layout, path: Path) -> None:
    """Add to the graph, in place, what makes one vector (batch, d) of its output.

    Args:
        model: from `read_graph`. layout: of its input, and of a feature map as high and wide as it has channels.
        reduction: "mean" over the positions or tokens, or the "first" token; "none" adds nothing.
        path: of the file, for error messages.
    """
    if reduction == "none":
        return
    name = model.graph.output[0].name
    shape = values_of(model, [name], path)[0].shape
    if len(shape) != 3 and (len(shape) != 4 or reduction == "first"):
        takes = "tokens (batch, tokens, d)" + " or a feature map" * (reduction == "mean")
        raise BackboneError(
            f'{path}: backbone.reduction "{reduction}" takes {takes}; the output {name} is {list(shape)} for an image'
        )
    builder = GraphBuilder(model)
    made = f"{name}_{reduction}"
    if reduction == "first":
        node = builder.node(made, "Gather", name, builder.constant("first", np.array(0)), axis=1)
    else:
        node = builder.reduction(made, "ReduceMean", name, _positions(shape[1:], layout), keepdims=0)
    model.graph.node.append(node)
    model.graph.output[0].name = node.output[0]


def suitable_reduction(shape: tuple[int, ...], layout: Layout) -> tuple[Reduction, str] | None:
    """How an output of this shape, for one image, becomes one vector, and why; None if it is one already.

    A class token is the first of more tokens than a square of patches has.
    """
    if len(shape) == 2:
        tokens = shape[0]
        if tokens > 1 and math.isqrt(tokens) ** 2 == tokens:
            return "mean", f"{tokens} tokens, the square of {math.isqrt(tokens)}: no class token among them"
        return ("first", f"{tokens} tokens, the first of them for the class") if tokens > 1 else None
    if len(shape) == 3:
        height, width = (shape[axis - 1] for axis in _positions(shape, layout))
        return ("mean", f"a feature map of {height} x {width} positions") if height * width > 1 else None
    return None


def _positions(shape: Sequence[int], layout: Layout) -> list[int]:
    """The axes of tokens or positions in a batch (1, *shape): images are square, and so are their feature maps."""
    if len(shape) == 2:
        return [1]
    first, last = shape[1] == shape[2], shape[0] == shape[1]
    return [2, 3] if (first and not last) or (first == last and layout == "nchw") else [1, 2]
