"""ONNX graphs extended for a bundle: pixels before them, normalisation and scale behind, weights in 16 bits.

A graph keeps its own operator set, so every node added here exists in all sets from `LEAST_OPSET` on.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from training.backbones.onnx_graph import Layout
from training.backbones.onnx_nodes import opset, subgraphs
from training.backbones.pixel_format import PixelFormat
from training.errors import BackboneError

_LARGE = 256  # tensors with fewer numbers are not stored in 16 bits: the cast takes as much space
_MOST_BYTES = 2**31 - 1  # limit of a protobuf file


def bundle_graph(
    model: ModelProto,
    pixels: PixelFormat | None,
    layout: Layout,
    embedding_size: int,
    *,
    flatten: bool,
    normalise: bool,
    scale: float,
) -> ModelProto:
    """The graph of a bundle: uint8 RGB (batch, S, S, 3) -> float32 (batch, d).

    Args:
        model: from `read_graph`. pixels: converts images to its input; None: it takes images.
        flatten: its output has more than two axes.
        normalise: divide embeddings by their norm. scale: multiply them, after that.
    """
    wrapped = ModelProto()
    wrapped.CopyFrom(model)
    builder = GraphBuilder(wrapped)
    if pixels is not None:
        builder.prepend_pixels(pixels, layout)
    builder.append_tail(flatten=flatten, normalise=normalise, scale=scale)
    builder.declare_output(embedding_size)
    if wrapped.ByteSize() > _MOST_BYTES:
        raise BackboneError(
            f"the graph has {wrapped.ByteSize()} bytes; a bundle holds one file of at most "
            f"{_MOST_BYTES}. Store its weights in 16 bits"
        )
    return wrapped


def store_in_half(model: ModelProto) -> None:
    """Store large float32 weights in 16 bits, each followed by a cast back to 32 bits.

    ONNX Runtime does the casts once, when it opens the graph. Weights beyond the range of 16 bits are left as they are.
    """
    graph, builder = model.graph, GraphBuilder(model)
    casts: list[NodeProto] = []
    for tensor in graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or math.prod(tensor.dims) < _LARGE:
            continue
        values = numpy_helper.to_array(tensor)
        if not np.abs(values).max() <= np.finfo(np.float16).max:
            continue
        name, stored = tensor.name, builder.fresh(f"{tensor.name}_half")
        tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), stored))
        casts.append(helper.make_node("Cast", [stored], [name], name=f"{stored}_cast", to=TensorProto.FLOAT))
    builder.insert(casts)


class GraphBuilder:
    """Adds nodes at the start and end of a graph, with names that it does not use yet."""

    def __init__(self, model: ModelProto) -> None:
        self.graph = model.graph
        self.opset = opset(model)
        self.taken = set(_names(self.graph))

    def prepend_pixels(self, pixels: PixelFormat, layout: Layout) -> None:
        """Nodes that do what `PixelFormat.planes` does: with channels last as in the images, then as in the graph."""
        value = self.graph.input[0]
        kind, shape = value.type.tensor_type.elem_type, [pixels.image_size] * 2
        images = self.fresh("images")
        nodes: list[NodeProto] = []

        def add(op: str, *inputs: str, **attributes: Any) -> str:
            nodes.append(self.node(f"pixels_{op.lower()}", op, *inputs, **attributes))
            return nodes[-1].output[0]

        x = add("Cast", images, to=TensorProto.FLOAT)
        if pixels.colour == "grey":
            # The mean as a matrix product: how ReduceMean takes its axes depends on the operator set.
            x = add("MatMul", x, self.constant("grey", np.full((3, 1), 1 / 3, dtype=np.float32)))
        elif pixels.colour == "bgr":
            x = add("Gather", x, self.constant("bgr", np.array([2, 1, 0])), axis=3)
        mean, std = np.array(pixels.mean), np.array(pixels.std)
        x = add("Mul", x, self.constant("gain", (1 / (255 * std)).astype(np.float32)))
        x = add("Sub", x, self.constant("shift", (mean / std).astype(np.float32)))
        if layout == "nchw":
            x = add("Transpose", x, perm=[0, 3, 1, 2])
        if kind != TensorProto.FLOAT:
            x = add("Cast", x, to=kind)
        nodes[-1].output[0] = value.name
        self.insert(nodes)
        del self.graph.input[:]
        self.graph.input.append(helper.make_tensor_value_info(images, TensorProto.UINT8, ["batch", *shape, 3]))

    def append_tail(self, *, flatten: bool, normalise: bool, scale: float) -> None:
        """Nodes that flatten, normalise and scale the embedding."""
        x = self.graph.output[0].name

        def add(op: str, *inputs: str, **attributes: Any) -> str:
            self.graph.node.append(self.node(f"embedding_{op.lower()}", op, *inputs, **attributes))
            return self.graph.node[-1].output[0]

        if flatten:
            x = add("Flatten", x, axis=1)
        x = add("Cast", x, to=TensorProto.FLOAT)
        if normalise:
            self.graph.node.append(self.reduction("embedding_reducel2", "ReduceL2", x, [1], keepdims=1))
            norm = self.graph.node[-1].output[0]
            x = add("Div", x, add("Max", norm, self.constant("tiny", np.float32(1e-12))))
        if scale != 1.0:
            x = add("Mul", x, self.constant("scale", np.float32(scale)))
        self.graph.output[0].name = x

    def node(self, name: str, op: str, *inputs: str, **attributes: Any) -> NodeProto:
        """A node with one output, both of this name, or one like it that is not used yet."""
        made = self.fresh(name)
        return helper.make_node(op, inputs, [made], name=made, **attributes)

    def reduction(self, name: str, op: str, given: str, axes: list[int], *, keepdims: int) -> NodeProto:
        """A node that reduces axes, which are an attribute before operator set 18 and an input from there on."""
        if self.opset < 18:
            return self.node(name, op, given, axes=axes, keepdims=keepdims)
        return self.node(name, op, given, self.constant("axes", np.array(axes)), keepdims=keepdims)

    def declare_output(self, embedding_size: int) -> None:
        name = self.graph.output[0].name
        del self.graph.output[:]
        self.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", embedding_size]))

    def constant(self, name: str, value: Any) -> str:
        name = self.fresh(name)
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def fresh(self, name: str) -> str:
        found, number = name, 0
        while found in self.taken:
            number += 1
            found = f"{name}_{number}"
        self.taken.add(found)
        return found

    def insert(self, nodes: list[NodeProto]) -> None:
        """Put nodes before the graph's own; nodes are stored in an order in which they can run."""
        rest = list(self.graph.node)
        del self.graph.node[:]
        self.graph.node.extend([*nodes, *rest])


def _names(graph: GraphProto) -> Iterator[str]:
    """Every name of a node or tensor in a graph."""
    yield from (value.name for value in (*graph.input, *graph.output, *graph.initializer))
    yield from (tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        yield from (node.name, *node.input, *node.output)
        for inner in subgraphs(node):
            yield from _names(inner)
