"""Small ONNX models, made by hand, and changes of their graphs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Change = Callable[[onnx.GraphProto], None]
NODE = helper.make_node

SIZE = 12
KERNEL = np.random.default_rng(0).standard_normal((6, 3, 3, 3)).astype(np.float32)
CLASSIFIER = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)
NORMALISATION = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}


def write_model(
    path: Path,
    *,
    opset: int = 17,
    layout: str = "nchw",
    batch: int | str = "batch",
    size: int | str = SIZE,
    dtype: int = TensorProto.FLOAT,
    colour: str = "rgb",
    change: Change | None = None,
) -> Path:
    """A classifier: convolution, ReLU, mean ("pooled"), dense ("logits")."""
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    channels = 1 if colour == "grey" else 3
    kernel = KERNEL[:, :channels].astype(np.float32 if dtype == TensorProto.UINT8 else kind)
    nodes, x = [], "images"
    if dtype == TensorProto.UINT8:
        nodes.append(NODE("Cast", [x], ["floats"], to=TensorProto.FLOAT))
        x = "floats"
    if layout != "nchw":
        nodes.append(NODE("Transpose", [x], ["planes"], perm=[0, 3, 1, 2]))
        x = "planes"
    nodes += [
        NODE("Conv", [x, "kernel"], ["features"]),
        NODE("Relu", ["features"], ["embeddings"]),
        NODE("GlobalAveragePool", ["embeddings"], ["pooled"]),
        NODE("Flatten", ["pooled"], ["flat"]),
        NODE("MatMul", ["flat", "classifier"], ["logits"]),
    ]
    shape = [batch, channels, size, size] if layout == "nchw" else [batch, size, size, channels]
    real = TensorProto.FLOAT if dtype == TensorProto.UINT8 else dtype
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("images", dtype, shape)],
        [helper.make_tensor_value_info("logits", real, [batch, 4])],
        [
            numpy_helper.from_array(kernel, "kernel"),
            numpy_helper.from_array(CLASSIFIER.astype(kernel.dtype), "classifier"),
        ],
        value_info=[helper.make_tensor_value_info("flat", real, [batch, 6])],
    )
    if change is not None:
        change(graph)
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=3 if opset < 9 else 8)
    if model.ir_version < 4:  # at that version weights were inputs
        for name, array in (("kernel", kernel), ("classifier", CLASSIFIER)):
            graph_input = helper.make_tensor_value_info(name, real, list(array.shape))
            model.graph.input.append(graph_input)
    onnx.save(model, path)
    return path


def ending(
    *nodes: onnx.NodeProto, kind: int = TensorProto.FLOAT, dims: list[Any] | None = None, **constants: Any
) -> Change:
    """More nodes behind the model's; the last makes the graph's one output.

    Args:
        dims: of that output; None: they are not declared.
        constants: of the nodes, by name.
    """

    def change(graph: onnx.GraphProto) -> None:
        graph.node.extend(nodes)
        graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items())
        output_only(nodes[-1].output[0], dims, kind)(graph)

    return change


def output_only(name: str, dims: list[Any] | None, kind: int = TensorProto.FLOAT) -> Change:
    """Make an inner tensor the graph's one output."""

    def change(graph: onnx.GraphProto) -> None:
        del graph.output[:]
        graph.output.append(helper.make_tensor_value_info(name, kind, dims))

    return change


def set_constant(graph: onnx.GraphProto, name: str, value: Any) -> None:
    """Give a constant of the graph another value, or add it."""
    made = numpy_helper.from_array(np.asarray(value), name)
    for tensor in graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(made)
            return
    graph.initializer.append(made)
