"""Weights for the centre of an ONNX graph's last feature map, where its embedding is the mean of one over positions."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper

from comln_serve.engine.embedding.backbone import open_session
from training.backbones.errors import BackboneError
from training.backbones.onnx_graph import GraphBuilder
from training.backbones.onnx_guess import PASSING, POOLING, behind, constants_of
from training.backbones.pooling import LEAST, centre_weights
from training.config.backbone import PoolingConfig


def weigh_centre(model: ModelProto, config: PoolingConfig, path: Path) -> None:
    """Make the mean that the graph's output is a weighted power mean, as of `CentrePooling`, in place.

    The node that takes the mean stays: its input is multiplied by weights whose mean is 1.

    Args:
        model: from `read_graph`. path: of the file, for error messages.

    Raises:
        BackboneError: the output is not the mean over positions of a float32 feature map, or the graph does not run.
    """
    graph = model.graph
    made_by = {made: node for node in graph.node for made in node.output}
    node = behind(made_by, graph.output[0].name, PASSING)
    found = None if node is None or node.op_type not in POOLING else _example(model, node.input[0], path)
    axes = None if found is None or node is None else _positions(node, constants_of(graph), found)
    if node is None or found is None or axes is None:
        raise BackboneError(
            f"{path}: backbone.pooling weighs the positions of a feature map whose mean is the embedding; "
            f"{graph.output[0].name} is not made by such a mean"
            + (f" but by {node.op_type}" if node is not None else "")
            + ". Leave pooling out, or name another tensor with backbone.output"
        )
    shape = [size if axis in axes else 1 for axis, size in enumerate(found.shape)]
    height, width = (found.shape[axis] for axis in axes)
    weights = centre_weights(height, width, config.sigma).numpy() * (height * width)
    builder = GraphBuilder(model)
    before: list[NodeProto] = []
    after: list[NodeProto] = []

    def add(nodes: list[NodeProto], op: str, given: str, constant: object) -> str:
        made = builder.fresh(f"centre_{op.lower()}")
        nodes.append(
            helper.make_node(
                op, [given, builder.constant("centre", np.asarray(constant, dtype=np.float32))], [made], name=made
            )
        )
        return made

    x = node.input[0]
    if config.power != 1.0:
        x = add(before, "Max", x, 0)
        x = add(before, "Pow", x, config.power)
    x = add(before, "Mul", x, weights.reshape(shape))
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


def _example(model: ModelProto, tensor: str, path: Path) -> NDArray[np.generic]:
    """The value of an inner tensor for one black image. Not every exporter's shapes can be inferred."""
    probe = ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    probe.graph.output.append(helper.make_empty_tensor_value_info(tensor))
    images = probe.graph.input[0]
    kind = helper.tensor_dtype_to_np_dtype(images.type.tensor_type.elem_type)
    sizes = [dim.dim_value for dim in images.type.tensor_type.shape.dim[1:]]
    try:
        session = open_session(probe.SerializeToString(), str(path), "cpu")
        (found,) = session.run(None, {images.name: np.zeros((1, *sizes), kind)})
    except Exception as error:  # ONNX Runtime's own exception types are not public
        raise BackboneError(f"{path}: the graph does not run on an image of {sizes} numbers ({error})") from error
    return found


def _positions(
    node: NodeProto, constants: Mapping[str, NDArray[np.generic]], maps: NDArray[np.generic]
) -> list[int] | None:
    """The two axes of positions, if the node takes the mean of these maps over both."""
    if maps.ndim != 4 or maps.dtype != np.float32:
        return None
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    axes = [2, 3]
    if node.op_type == "ReduceMean":
        given = attributes.get("axes", constants.get(node.input[1]) if len(node.input) > 1 else None)
        axes = [] if given is None else sorted(int(axis) % 4 for axis in given)
    elif node.op_type == "AveragePool" and (
        tuple(attributes["kernel_shape"]) != maps.shape[2:] or any(attributes.get("pads", ()))
    ):
        return None
    return axes if axes in ([1, 2], [2, 3]) else None
