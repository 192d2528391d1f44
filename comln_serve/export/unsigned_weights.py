"""Makes the 8-bit weights of a graph unsigned, so that every CPU computes the same with it."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper


def use_unsigned_weights(graph: GraphProto) -> None:
    """Turn int8 weights into uint8: 128 is added to each and to its zero point, so their values stay the same.

    x86 CPUs without VNNI overflow where they multiply unsigned activations by signed weights in the
    way ONNX Runtime prefers. The server's sessions avoid that with an option; whoever runs an exported
    file may not know of it. A graph that uses such a tensor for something else, too, is left as it is.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == TensorProto.INT8}
    weights = [node for node in graph.node if _dequantises(node, constants)]
    uses, own = Counter(_inputs(graph)), Counter(name for node in weights for name in (node.input[0], node.input[2]))
    if any(uses[name] != count for name, count in own.items()):
        return
    for name in own:
        signed = numpy_helper.to_array(constants[name])
        constants[name].CopyFrom(numpy_helper.from_array(signed.view(np.uint8) ^ np.uint8(128), name))


def _dequantises(node: NodeProto, constants: dict[str, TensorProto]) -> bool:
    """Whether a node gives the real numbers of constant int8 weights with a constant zero point."""
    return (
        node.op_type == "DequantizeLinear"
        and len(node.input) == 3
        and node.input[0] in constants
        and node.input[2] in constants
    )


def _inputs(graph: GraphProto) -> Iterator[str]:
    """The inputs of every node, those in graphs inside nodes included."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _inputs(inner)
