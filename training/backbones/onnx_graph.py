"""ONNX graphs: read from a file, checked, and cut at the embedding."""

import difflib
import zipfile
from pathlib import Path
from typing import Any, Literal

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from training.backbones.onnx_batch import open_batch
from training.backbones.onnx_nodes import LEAST_OPSET, names_read, opset
from training.errors import BackboneError

Layout = Literal["nchw", "nhwc", "as_is"]

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
_LFS_POINTER = b"version https://git-lfs"


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
    kind, sides = images.type.tensor_type.elem_type, image_axes(layout, channels, image_size)
    declared = helper.make_tensor_value_info(images.name, kind, ["batch", *sides])
    del graph.input[:]
    graph.input.append(declared)
    # ONNX Runtime infers its type, and inner shapes, which may declare a fixed batch size.
    del graph.output[:]
    graph.output.append(helper.make_empty_tensor_value_info(name))
    del graph.value_info[:]
    model.ir_version = max(model.ir_version, 4)  # before version 4, weights had to be inputs
    drop_provenance(model)
    return model


def image_input(path: Path, graph: GraphProto) -> ValueInfoProto:
    """The graph's one input; BackboneError if it has another number of them."""
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


def image_axes(layout: Layout, channels: int, image_size: int) -> tuple[int, int, int]:
    """Sizes of the input's axes behind that of the batch."""
    if layout == "nchw":
        return channels, image_size, image_size
    return image_size, image_size, 3 if layout == "as_is" else channels


def drop_provenance(model: ModelProto) -> None:
    """Remove metadata about the exporting machine, such as source file paths of nodes."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
    for part in (graph, *graph.node):
        part.doc_string = ""


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
        with path.open("rb") as file:
            is_pointer = file.read(len(_LFS_POINTER)) == _LFS_POINTER
        if is_pointer:
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
    if opset(model) < LEAST_OPSET:
        raise BackboneError(
            f"{path}: operator set {opset(model)}; {LEAST_OPSET} or later is needed. Export "
            "the model anew, or convert it with onnx.version_converter"
        )
    for tensor in model.graph.initializer:
        # Weights read from another file must no longer say so: the graph, and its hash, are then the
        # same as if they had been stored in it.
        if tensor.data_location == TensorProto.DEFAULT:
            tensor.ClearField("data_location")
    return model


def _check_input(path: Path, value: ValueInfoProto, layout: Layout, channels: int, image_size: int) -> None:
    kinds = (TensorProto.UINT8,) if layout == "as_is" else _FLOATS
    sides = image_axes(layout, channels, image_size)
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


def describe_value(value: ValueInfoProto) -> str:
    """Name, type and shape of an input or output, for messages."""
    tensor = value.type.tensor_type
    kind = TensorProto.DataType.Name(tensor.elem_type).lower()
    sizes = [str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim]
    return f"{value.name} {kind} ({', '.join(sizes)})"
