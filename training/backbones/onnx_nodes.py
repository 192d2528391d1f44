"""What the nodes of an ONNX graph say: their attributes, what they read, and which of them makes a tensor."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

LEAST_OPSET = 8
"""The oldest operator set of which graphs are taken. Max broadcasts from here on."""

# Their output has the shape of their input.
_COPYING = {"Cast", "Identity", "DequantizeLinear"}


def opset(model: ModelProto) -> int:
    """The version of ONNX's own operators that a graph uses."""
    return max((entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), default=LEAST_OPSET)


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """A node's attributes by name, as Python values; text as bytes."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def makers(graph: GraphProto) -> dict[str, NodeProto]:
    """The node that makes each tensor, by the tensor's name."""
    return {made: node for node in graph.node for made in node.output}


def behind(made_by: Mapping[str, NodeProto], name: str, skipped: set[str]) -> NodeProto | None:
    """The node that computes a tensor, before any nodes of the `skipped` kinds; None: the graph's input.

    Args:
        made_by: from `makers`.
    """
    node = made_by.get(name)
    for _ in made_by:  # not for ever, should a damaged graph go round in a circle
        if node is None or node.op_type not in skipped:
            break
        node = made_by.get(node.input[0])
    return node


def constants_of(graph: GraphProto) -> dict[str, NDArray[np.generic]]:
    """Stored tensors by name, including their casts, transpositions and copies."""
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            for kind, value in attributes_of(node).items():
                if kind == "value":
                    found[node.output[0]] = numpy_helper.to_array(value)
                elif kind in {"value_float", "value_floats"}:
                    found[node.output[0]] = np.atleast_1d(np.array(value, dtype=np.float32))
                elif kind in {"value_int", "value_ints"}:
                    found[node.output[0]] = np.atleast_1d(np.array(value, dtype=np.int64))
        elif node.op_type == "Transpose" and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]].transpose(attributes_of(node).get("perm"))
        elif node.op_type in _COPYING and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found


def names_read(node: NodeProto) -> Iterator[str]:
    """Names that a node reads, including those that its subgraphs take from outside."""
    yield from node.input
    for graph in subgraphs(node):
        yield from (name for inner in graph.node for name in names_read(inner))
        yield from (value.name for value in graph.output)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs inside a node, such as the branches of an If."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
