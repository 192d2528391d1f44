"""Weights for the centre of an ONNX graph's last feature map, where its embedding is the mean of one over positions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto

from training.backbones.centre import LEAST, centre_weights
from training.backbones.onnx_builder import GraphBuilder
from training.backbones.onnx_guess import PASSING, POOLING
from training.backbones.onnx_nodes import attributes_of, behind, constants_of, makers
from training.backbones.onnx_trial import values_of
from training.config.backbone import PoolingConfig
from training.errors import BackboneError

# Share of negative numbers, by size, up to which a map counts as one after a ReLU.
_MOST_NEGATIVE = 0.05


def weigh_centre(model: ModelProto, config: PoolingConfig, path: Path) -> None:
    """Make the mean that the graph's output is a weighted power mean, as of `CentrePooling`, in place.

    The node that takes the mean stays: its input is multiplied by weights whose mean is 1.

    Args:
        model: from `read_graph`. path: of the file, for error messages.

    Raises:
        BackboneError: the output is not the mean over positions of a float32 feature map; a power of a map with many
            negative numbers; or the graph does not run.
    """
    graph, builder = model.graph, GraphBuilder(model)
    node, shape, axes = _mean(model, config, path)
    height, width = (shape[axis] for axis in axes)
    weights = centre_weights(height, width, config.sigma) * (height * width)
    before: list[NodeProto] = []
    after: list[NodeProto] = []

    def add(nodes: list[NodeProto], op: str, given: str, constant: object) -> str:
        number = builder.constant("centre", np.asarray(constant, dtype=np.float32))
        nodes.append(builder.node(f"centre_{op.lower()}", op, given, number))
        return nodes[-1].output[0]

    x = node.input[0]
    if config.power != 1.0:
        x = add(before, "Max", x, 0)
        x = add(before, "Pow", x, config.power)
    x = add(before, "Mul", x, weights.reshape([size if axis in axes else 1 for axis, size in enumerate(shape)]))
    node.input[0] = x
    if config.power != 1.0:
        result, node.output[0] = node.output[0], builder.fresh("centre_mean")
        x = add(after, "Max", node.output[0], LEAST)
        add(after, "Pow", x, 1 / config.power)
        after[-1].output[0] = result
    at = next(i for i, one in enumerate(graph.node) if one.output == node.output)
    ordered = [*graph.node[:at], *before, node, *after, *graph.node[at + 1 :]]
    kept = [NodeProto.FromString(one.SerializeToString()) for one in ordered]  # clearing the field empties its nodes
    del graph.node[:]
    graph.node.extend(kept)


def _mean(model: ModelProto, config: PoolingConfig, path: Path) -> tuple[NodeProto, tuple[int, ...], list[int]]:
    """The node that takes the mean that is the output, the shape of its feature map, and the two axes of positions."""
    graph = model.graph
    node = behind(makers(graph), graph.output[0].name, PASSING)
    if node is None or node.op_type not in POOLING:
        made = "the graph's input" if node is None else f"made by {node.op_type}"
        raise _refused(path, f"{graph.output[0].name} is {made}, not by the mean over the positions of a feature map")
    maps, means = values_of(model, [node.input[0], node.output[0]], path)
    axes = _positions(node, constants_of(graph), maps, means)
    if axes is None:
        raise _refused(
            path, f"{node.op_type} makes {list(means.shape)} numbers of {list(maps.shape)}: no mean over two axes"
        )
    if maps.dtype != np.float32:
        raise _refused(path, f"the feature map is {maps.dtype}; float32 is needed")
    if config.power != 1.0 and -maps[maps < 0].sum() > _MOST_NEGATIVE * np.abs(maps).sum():
        raise BackboneError(
            f"{path}: backbone.pooling with a power is for feature maps after a ReLU; this one has many negative "
            "numbers, which would count as 0. Give sigma alone"
        )
    return node, maps.shape, axes


def _refused(path: Path, reason: str) -> BackboneError:
    return BackboneError(
        f"{path}: backbone.pooling weighs the positions of a feature map whose mean is the embedding; {reason}. Leave "
        "pooling out, or name another tensor with backbone.output"
    )


def _positions(
    node: NodeProto, constants: Mapping[str, NDArray[np.generic]], maps: NDArray[Any], means: NDArray[Any]
) -> list[int] | None:
    """The two axes of positions, if the node made `means` of `maps` by taking the mean over both."""
    if maps.ndim != 4:
        return None
    axes = [2, 3]
    if node.op_type == "ReduceMean":
        given = attributes_of(node).get("axes", constants.get(node.input[1]) if len(node.input) > 1 else None)
        axes = [] if given is None else sorted(int(axis) % 4 for axis in given)
    if axes not in ([1, 2], [2, 3]):
        return None
    # A pooling with a smaller window, or with padding, makes other numbers.
    same = means.size == maps.mean(axis=tuple(axes)).size and np.allclose(
        means.ravel(), maps.mean(axis=tuple(axes)).ravel(), rtol=1e-2, atol=1e-4
    )
    return axes if same else None
