"""ONNX graphs: read from a file, cut at the embedding, and extended for a bundle.

A graph keeps its own operator set, so every node added here exists in all sets from `_LEAST_OPSET`
on.
"""

import difflib
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from training.backbones.onnx_batch import open_batch
from training.backbones.pixel_format import PixelFormat
from training.errors import BackboneError

Layout = Literal["nchw", "nhwc", "as_is"]

_LEAST_OPSET = 8  # Max broadcasts from here on
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
_LARGE = 256  # tensors with fewer numbers are not stored in 16 bits: the cast takes as much space
_LFS_POINTER = b"version https://git-lfs"
_MOST_BYTES = 2**31 - 1  # limit of a protobuf file


def read_graph(path: Path, layout: Layout, channels: int, image_size: int, output: str | None) -> ModelProto:
    """The graph at `path`, cut to one input and one output, its batch axis named "batch".

    Args:
        layout: of the input; see `BackboneConfig.layout`.
        channels: of the graph's input images.
        output: the tensor that is the embedding; None: the graph's only output.

    Raises:
        BackboneError: the file is not a readable graph; the input is not one tensor of the expected
            type, rank and size; there is no such output, or there are several to choose from.
    """
    model = load_graph(path)
    graph = model.graph
    images = image_input(path, graph)
    _check_input(path, images, layout, channels, image_size)
    name = _choose_output(path, graph, output)
    dims = images.type.tensor_type.shape.dim
    if dims and dims[0].dim_value == 1:
        open_batch(graph, images.name)
    _cut(graph, name)
    _shape(images, layout, channels, image_size)
    del graph.input[:]
    graph.input.append(images)
    # ONNX Runtime infers its type, and inner shapes, which may declare a fixed batch size.
    del graph.output[:]
    graph.output.append(helper.make_empty_tensor_value_info(name))
    del graph.value_info[:]
    model.ir_version = max(model.ir_version, 4)  # before version 4, weights had to be inputs
    drop_provenance(model)
    return model


def image_input(path: Path, graph: GraphProto) -> ValueInfoProto:
    """The graph's one input.

    Raises:
        BackboneError: another number of inputs.
    """
    stored = {tensor.name for tensor in graph.initializer}
    stored |= {tensor.values.name for tensor in graph.sparse_initializer}
    # Old files list their weights among the inputs.
    inputs = [value for value in graph.input if value.name not in stored]
    if len(inputs) != 1:
        raise BackboneError(
            f"{path}: the graph must have one input, the images; it has {len(inputs)}: "
            f"{', '.join(map(describe_value, inputs)) or 'none'}. Export the part of the model that takes images alone"
        )
    return inputs[0]


def drop_provenance(model: ModelProto) -> None:
    """Remove metadata about the exporting machine, such as source file paths of nodes."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
    for part in (graph, *graph.node):
        part.doc_string = ""


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

    Raises:
        BackboneError: the result is too large for one file.
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

    ONNX Runtime does the casts once, when it opens the graph. Weights beyond the range of 16 bits
    are left as they are.
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
        self.opset = _opset(model)
        self.taken = set(_names(self.graph))

    def prepend_pixels(self, pixels: PixelFormat, layout: Layout) -> None:
        """Nodes that do what `PixelFormat.planes` does: with channels last as in the images, then as in the graph."""
        value = self.graph.input[0]
        kind, shape = value.type.tensor_type.elem_type, [pixels.image_size] * 2
        images = self.fresh("images")
        nodes: list[NodeProto] = []

        def add(op: str, *inputs: str, **attributes: Any) -> str:
            made = self.fresh(f"pixels_{op.lower()}")
            nodes.append(helper.make_node(op, list(inputs), [made], name=made, **attributes))
            return made

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
            made = self.fresh(f"embedding_{op.lower()}")
            node = helper.make_node(op, list(inputs), [made], name=made, **attributes)
            self.graph.node.append(node)
            return made

        if flatten:
            x = add("Flatten", x, axis=1)
        x = add("Cast", x, to=TensorProto.FLOAT)
        if normalise:
            norm = self.fresh("embedding_reducel2")
            self.graph.node.append(self.node_of_axes("ReduceL2", x, norm, [1], keepdims=1))
            x = add("Div", x, add("Max", norm, self.constant("tiny", np.float32(1e-12))))
        if scale != 1.0:
            x = add("Mul", x, self.constant("scale", np.float32(scale)))
        self.graph.output[0].name = x

    def node_of_axes(self, op: str, given: str, made: str, axes: list[int], *, keepdims: int) -> NodeProto:
        """A node that reduces axes, which are an attribute before operator set 18 and an input from there on."""
        if self.opset < 18:
            return helper.make_node(op, [given], [made], name=made, axes=axes, keepdims=keepdims)
        return helper.make_node(
            op, [given, self.constant("axes", np.array(axes))], [made], name=made, keepdims=keepdims
        )

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


def load_graph(path: Path) -> ModelProto:
    """The ONNX file at `path`, with weights stored in other files beside it.

    Raises:
        BackboneError: not a readable graph, or its operator set is too old.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except FileNotFoundError as error:
        raise BackboneError(f"{path}: no such file") from error
    except OSError as error:
        raise BackboneError(f"{path}: cannot be read: {error.strerror}") from error
    except Exception as error:  # protobuf and onnx raise many types for a damaged file
        if _begins_with(path, _LFS_POINTER):
            raise BackboneError(
                f"{path}: a pointer of Git LFS in place of the file; git lfs pull fetches it"
            ) from error
        if zipfile.is_zipfile(path):
            raise BackboneError(
                f"{path}: a zip archive, as torch.save writes; export the model by torch.onnx.export"
            ) from error
        raise BackboneError(f"{path}: not a readable ONNX file ({error})") from error
    try:
        onnx.load_external_data_for_model(model, str(path.parent))
    except Exception as error:  # as above
        raise BackboneError(
            f"{path}: the file of its weights cannot be read ({error}). Put it beside the model, as it was written: "
            "torch.onnx.export names it like the model, and .data"
        ) from error
    if not model.graph.node:
        raise BackboneError(f"{path}: not an ONNX file, or one without nodes")
    if _opset(model) < _LEAST_OPSET:
        raise BackboneError(
            f"{path}: operator set {_opset(model)}; {_LEAST_OPSET} or later is needed. Export "
            "the model anew, or convert it with onnx.version_converter"
        )
    for tensor in model.graph.initializer:
        # Weights read from another file must no longer say so: the graph, and its hash, are then the
        # same as if they had been stored in it.
        if tensor.data_location == TensorProto.DEFAULT:
            tensor.ClearField("data_location")
    return model


def _begins_with(path: Path, start: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(start)) == start


def _opset(model: ModelProto) -> int:
    return max((entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), default=_LEAST_OPSET)


def _check_input(path: Path, value: ValueInfoProto, layout: Layout, channels: int, image_size: int) -> None:
    wanted = {
        "nchw": (_FLOATS, (channels, image_size, image_size)),
        "nhwc": (_FLOATS, (image_size, image_size, channels)),
        "as_is": ((TensorProto.UINT8,), (image_size, image_size, 3)),
    }
    kinds, sides = wanted[layout]
    tensor = value.type.tensor_type
    dims = tensor.shape.dim
    if tensor.elem_type not in kinds:
        names = " or ".join(TensorProto.DataType.Name(kind).lower() for kind in kinds)
        raise BackboneError(
            f"{path}: backbone.layout {layout} needs a {names} input; the graph "
            f"takes {describe_value(value)}. A uint8 input (batch, S, S, 3) is as_is, floats are "
            "nchw or nhwc"
        )
    # A graph may leave its input's shape open altogether.
    if tensor.HasField("shape"):
        if len(dims) != 4:
            raise BackboneError(
                f"{path}: the input must have four axes (batch, {', '.join(map(str, sides))}); "
                f"the graph takes {describe_value(value)}"
            )
        for dim, side in zip(dims[1:], sides, strict=True):
            if dim.HasField("dim_value") and dim.dim_value != side:
                raise BackboneError(
                    f"{path}: the recipe makes batches of (batch, {', '.join(map(str, sides))}); "
                    f"the graph takes {describe_value(value)}. Check "
                    "data.preprocessing.image_size, backbone.layout and backbone.colour"
                )


def _shape(value: ValueInfoProto, layout: Layout, channels: int, image_size: int) -> None:
    """Declare the input's shape: any batch size, images as in the recipe."""
    side = [image_size, image_size]
    sides = {"nchw": [channels, *side], "nhwc": [*side, channels], "as_is": [*side, 3]}[layout]
    kind = value.type.tensor_type.elem_type
    value.CopyFrom(helper.make_tensor_value_info(value.name, kind, ["batch", *sides]))


def _choose_output(path: Path, graph: GraphProto, output: str | None) -> str:
    outputs = [value.name for value in graph.output]
    if output is None:
        if len(outputs) != 1:
            raise BackboneError(
                f"{path}: the graph has {len(outputs)} outputs, {', '.join(outputs)}; say with "
                "backbone.output which one is the embedding"
            )
        return outputs[0]
    inner = [name for node in graph.node for name in node.output if name]
    if output not in inner:
        close = difflib.get_close_matches(output, inner, n=3) or inner[-3:]
        raise BackboneError(
            f"{path}: no tensor is called {output!r}. Outputs: {', '.join(outputs)}; other "
            f"tensors, e.g.: {', '.join(close)}"
        )
    return output


def _cut(graph: GraphProto, output: str) -> None:
    """Remove nodes and weights on which `output` does not depend."""
    needed, kept = {output}, list[NodeProto]()
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(names_read(node))
            kept.append(node)
    if len(kept) < len(graph.node):
        del graph.node[:]
        graph.node.extend(reversed(kept))
    for tensors in (graph.initializer, graph.sparse_initializer):
        stored: list[Any] = [
            tensor
            for tensor in tensors
            if (tensor.name if isinstance(tensor, TensorProto) else tensor.values.name) in needed
        ]
        if len(stored) < len(tensors):
            del tensors[:]
            tensors.extend(stored)


def names_read(node: NodeProto) -> Iterator[str]:
    """Names that a node reads, including those that its subgraphs take from outside."""
    yield from node.input
    for graph in _subgraphs(node):
        yield from (name for inner in graph.node for name in names_read(inner))
        yield from (value.name for value in graph.output)


def _names(graph: GraphProto) -> Iterator[str]:
    """Every name of a node or tensor in a graph."""
    yield from (value.name for value in (*graph.input, *graph.output, *graph.initializer))
    yield from (tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        yield from (node.name, *node.input, *node.output)
        for inner in _subgraphs(node):
            yield from _names(inner)


def _subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def describe_value(value: ValueInfoProto) -> str:
    """Name, type and shape of an input or output, for messages."""
    tensor = value.type.tensor_type
    kind = TensorProto.DataType.Name(tensor.elem_type).lower()
    sizes = [str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim]
    return f"{value.name} {kind} ({', '.join(sizes)})"
