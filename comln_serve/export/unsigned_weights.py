"""Makes 8-bit weights of a graph unsigned where some CPUs would overflow with them."""

from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

_SAFE = 64  # 2 * 255 * 64 < 2^15


def use_unsigned_weights(graph: GraphProto) -> None:
    """Turn int8 weights outside -64 to 64 into uint8: 128 is added to each and to its zero point, so their values stay.

    x86 CPUs without VNNI overflow where they multiply unsigned activations by such weights in the
    way ONNX Runtime prefers. The server's sessions avoid that with an option; whoever runs an exported
    file may not know of it. Smaller weights cannot overflow, and stay signed, with which CPUs with VNNI are
    faster. A tensor that is used for something else, too, is left as it is.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == TensorProto.INT8}
    readers = defaultdict[str, list[NodeProto]](list)
    for node in graph.node:
        if _dequantises(node, constants):
            readers[node.input[0]].append(node)
    uses = Counter(_inputs(graph))
    for name, nodes in readers.items():
        if uses[name] > len(nodes) or not _may_overflow(numpy_helper.to_array(constants[name])):
            continue
        constants[name].CopyFrom(_plus_128(constants[name], name))
        # Tensors of their own: signed weights may have the same zero point.
        for zero in {node.input[2] for node in nodes}:
            graph.initializer.append(_plus_128(constants[zero], f"{name}/{zero}/unsigned"))
        for node in nodes:
            node.input[2] = f"{name}/{node.input[2]}/unsigned"
    uses = Counter(_inputs(graph))
    for name, tensor in constants.items():
        if not uses[name]:  # a zero point of unsigned weights alone
            graph.initializer.remove(tensor)


def _plus_128(signed: TensorProto, name: str) -> TensorProto:
    return numpy_helper.from_array(numpy_helper.to_array(signed).view(np.uint8) ^ np.uint8(128), name)


def _dequantises(node: NodeProto, constants: dict[str, TensorProto]) -> bool:
    """Whether a node gives the real numbers of constant int8 weights with a constant zero point."""
    return (
        node.op_type == "DequantizeLinear"
        and len(node.input) == 3
        and node.input[0] in constants
        and node.input[2] in constants
    )


def _may_overflow(weights: NDArray[np.int8]) -> bool:
    """Whether two products with values of 0 to 255 may add up to more than 16 bits hold."""
    return bool(weights.size) and int(np.abs(weights.astype(np.int16)).max()) > _SAFE


def _inputs(graph: GraphProto) -> Iterator[str]:
    """The inputs of every node, those in graphs inside nodes included."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _inputs(inner)
