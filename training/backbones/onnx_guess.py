"""Guesses from an ONNX graph: its input's layout, size and normalisation, and the embedding's tensor.

Every guess has a reason, for a person to check. It is None if the graph does not tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, shape_inference

from training.backbones.onnx_graph import Layout, describe_value
from training.backbones.onnx_nodes import attributes_of, behind, constants_of, makers
from training.errors import BackboneError

T = TypeVar("T")

PixelRange = Literal["none", "raw"]
"""Pixel values that a normalising graph takes: in [0, 1] ("none"), or 0 to 255 ("raw")."""

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
PASSING = {"Identity", "Cast", "Dropout", "Flatten", "Reshape", "Squeeze", "Transpose"}
# What a quantised graph has around the layers.
_QUANTISING = {"QuantizeLinear", "DequantizeLinear"}
# The products of linear layers, and what may be between one and its bias. A dynamically quantised layer multiplies
# integers, and their product by the scales; after a product of floats a Mul is a normalisation's, and no classifier's.
_PRODUCTS = {"MatMul": _QUANTISING, "MatMulInteger": {"Mul", "Cast"}}
# Linear layers of 8-bit numbers, in the format QOperator.
_IN_8_BITS = {"QGemm", "QLinearMatMul"}
_PROBABILITIES = {"Softmax", "LogSoftmax", "Sigmoid"}
# What a classifier has behind its last layer; in the format QOperator that layer's bias, too.
_ANSWERING = _PROBABILITIES | {"TopK", "QLinearAdd", "QLinearSoftmax", "QLinearSigmoid"}
POOLING = {"GlobalAveragePool", "ReduceMean", "AveragePool"}
_EMBEDDING_WORDS = ("embed", "feature", "descriptor")
# For pixel values in [0, 1] means and standard deviations are below 1.
_LARGE_OFFSET, _LARGE_DIVISOR = 2.0, 2.0


@dataclass(frozen=True)
class Guess(Generic[T]):
    """A value, and what in the graph suggests it."""

    value: T
    reason: str


def guess_layout(value: ValueInfoProto) -> Guess[Layout] | None:
    """The layout of the input, from its type and shape."""
    tensor = value.type.tensor_type
    if tensor.elem_type == TensorProto.UINT8:
        return Guess("as_is", "the input is uint8")
    sizes = _sizes(value)
    if sizes is None:
        return None
    second, last = sizes[1] in (1, 3), sizes[3] in (1, 3)
    if second == last:
        return None
    axis = 1 if second else 3
    return Guess("nchw" if second else "nhwc", f"axis {axis} of the input has size {sizes[axis]}")


def guess_channels(value: ValueInfoProto, layout: Layout) -> int | None:
    """Number of channels of the input; None if its shape does not tell."""
    sizes = _sizes(value)
    return None if sizes is None else sizes[1 if layout == "nchw" else 3]


def guess_image_size(path: Path, value: ValueInfoProto, layout: Layout) -> Guess[int] | None:
    """The side of the input images; BackboneError if they are not square."""
    sizes = _sizes(value)
    if sizes is None:
        return None
    height, width = sizes[2:] if layout == "nchw" else sizes[1:3]
    if height is not None and width is not None and height != width:
        raise BackboneError(
            f"{path}: the graph takes images of {height} x {width} px ({describe_value(value)}); a "
            "bundle's images are square. Check backbone.layout, or export the model for square "
            "images"
        )
    side = height or width
    return None if side is None else Guess(side, "from the input's shape")


def guess_normalisation(model: ModelProto, image: str) -> Guess[PixelRange] | None:
    """The pixel range, if the first node that computes on the input normalises it."""
    graph = model.graph
    constants = constants_of(graph)
    node = _first_computing(graph, image)
    if node is None:
        return None
    reason = f"the graph's first operation on pixels is {node.op_type}"
    if node.op_type == "BatchNormalization":
        mean, variance = (constants.get(key) for key in node.input[3:5])
        if mean is None or variance is None:
            return None
        raw = np.abs(mean).max() > _LARGE_OFFSET or variance.max() > _LARGE_DIVISOR**2
    elif node.op_type in {"Sub", "Add", "Mul", "Div"}:
        given = next((constants[key] for key in node.input if key in constants), None)
        if given is None or not given.size:
            return None
        if node.op_type in {"Sub", "Add"}:
            raw = np.abs(given).max() > _LARGE_OFFSET
        elif node.op_type == "Div":
            raw = np.abs(given).min() > _LARGE_DIVISOR
        else:
            raw = np.abs(given).max() < 1 / _LARGE_DIVISOR
        reason += f" with {_short(given)}"
    else:
        return None
    return Guess("raw" if raw else "none", reason)


def guess_output(path: Path, model: ModelProto) -> Guess[str]:
    """The tensor that holds the embedding: the input of a classifier's last layer, or an output.

    Raises:
        BackboneError: no floating-point output, several that may be the embedding, or a linear
            classifier directly on the pixels.
    """
    graph = _with_shapes(model).graph
    outputs = [v for v in graph.output if v.type.tensor_type.elem_type in (*_FLOATS, 0)]
    if not outputs:
        last = [name for node in graph.node for name in node.output if name][-4:]
        raise BackboneError(
            f"{path}: no output holds floating-point numbers: "
            f"{', '.join(map(describe_value, graph.output))}. Name the tensor that holds the "
            f"embedding with backbone.output; the last are {', '.join(last)}"
        )
    flat = [value for value in outputs if len(value.type.tensor_type.shape.dim) == 2]
    found = {guess.value: guess for guess in (_embedding(path, graph, v) for v in flat or outputs)}
    if len(found) > 1:
        raise BackboneError(
            f"{path}: several outputs may be the embedding: "
            f"{', '.join(map(describe_value, flat or outputs))}. Say which with backbone.output"
        )
    (guess,) = found.values()
    if len(graph.output) == 1:
        return guess
    others = [value.name for value in graph.output if value.name != guess.value]
    return Guess(guess.value, f"{guess.reason}; other outputs: {', '.join(others)}")


def declared_axes(model: ModelProto, tensor: str) -> int | None:
    """Number of axes of a tensor; None if the graph does not tell."""
    graph = _with_shapes(model).graph
    for value in (*graph.output, *graph.value_info):
        if value.name == tensor and value.type.tensor_type.HasField("shape"):
            return len(value.type.tensor_type.shape.dim)
    return None


def makes_probabilities(model: ModelProto, tensor: str) -> str | None:
    """The operator that makes the tensor, if it makes probabilities of classes."""
    node = behind(makers(model.graph), tensor, PASSING | _QUANTISING)
    return node.op_type if node is not None and node.op_type in _PROBABILITIES else None


def _embedding(path: Path, graph: GraphProto, output: ValueInfoProto) -> Guess[str]:
    """The input of the classifier that computes `output`, or the output itself if there is none."""
    name = output.name
    if any(word in name.lower() for word in _EMBEDDING_WORDS):
        return Guess(name, f"the name of the output {name}")
    made_by = makers(graph)
    constants = constants_of(graph)
    node = behind(made_by, name, PASSING | _ANSWERING | _QUANTISING)
    if node is not None and node.op_type in {"Mul", "Div"}:
        # The temperature of a classifier: one number for all scores.
        scored = [one for one in node.input if one not in constants or constants[one].size > 1]
        node = behind(made_by, scored[0], PASSING | _ANSWERING | _QUANTISING) if len(scored) == 1 else node
    if node is not None and node.op_type in _IN_8_BITS:
        raise BackboneError(
            f"{path}: the last layer, a {node.op_type}, takes 8-bit numbers, which are no embedding. Wrap the model in "
            "float32, or quantise it in the format QDQ (onnxruntime.quantization.QuantFormat); or keep the output as "
            f"the embedding with backbone.output {name}"
        )
    layer = None if node is None else _linear(made_by, constants, node)
    if layer is None:
        last = behind(made_by, name, PASSING)
        if last is not None and last.op_type in _PROBABILITIES:
            return Guess(last.input[0], f"input of the {last.op_type} that makes the output {name}")
        return Guess(name, f"the output {name}; no last layer of a classifier was found before it")
    features, kind, classes = layer
    source = behind(made_by, features, PASSING | _QUANTISING)
    if source is None:
        raise BackboneError(
            f"{path}: the graph is one linear layer on the pixels (to {classes} numbers, output "
            f"{name}); it has no embedding. Wrap a network, or keep its output as the embedding "
            f"with backbone.output {name}"
        )
    pooled = "global average of the features, " if source.op_type in POOLING else ""
    to = f"{classes} class{'es' * (classes > 1)}"
    return Guess(features, f"{pooled}input of the last layer ({kind} to {to}, output {name})")


def _linear(
    made_by: Mapping[str, NodeProto], constants: Mapping[str, NDArray[np.generic]], node: NodeProto
) -> tuple[str, str, int] | None:
    """Input, kind and width of the linear layer that ends in `node`; None if it is no linear layer."""
    kind = node.op_type
    if kind == "Add":
        found = [(behind(made_by, name, skipped), kind) for name in node.input for kind, skipped in _PRODUCTS.items()]
        products = [product for product, kind in found if product is not None and product.op_type == kind]
        if len(products) != 1 or not any(name in constants for name in node.input):
            return None
        (node,) = products
        kind = f"{node.op_type} and Add"
    if node.op_type not in {"Gemm", "MatMul", "MatMulInteger", "Conv"}:
        return None
    weight = constants.get(node.input[1])
    if weight is None or weight.ndim < 2:
        return None
    width = int(weight.shape[-1])
    if node.op_type == "Conv":
        # Many mobile networks end in a 1 x 1 convolution of the pooled features.
        source = behind(made_by, node.input[0], PASSING | _QUANTISING)
        if set(weight.shape[2:]) != {1} or source is None or source.op_type not in POOLING:
            return None
        width = int(weight.shape[0])
    elif node.op_type == "Gemm" and attributes_of(node).get("transB"):
        width = int(weight.shape[0])
    before = made_by.get(node.input[0])
    features = before.input[0] if before is not None and before.op_type == "DynamicQuantizeLinear" else node.input[0]
    return features, kind, width


def _first_computing(graph: GraphProto, image: str) -> NodeProto | None:
    """The first node that does more with the images than copy them; None if there are several, or none."""
    name = image
    for _ in graph.node:  # as in `behind`
        users = [node for node in graph.node if name in node.input]
        if len(users) != 1:
            break
        if users[0].op_type not in {"Identity", "Cast", "Transpose"}:
            return users[0]
        name = users[0].output[0]
    return None


def _with_shapes(model: ModelProto) -> ModelProto:
    """The graph with inferred shapes; unchanged if they cannot be inferred."""
    try:
        return shape_inference.infer_shapes(model)
    except Exception:  # noqa: BLE001 (types that onnx does not publish; shapes are optional)
        return model


def _sizes(value: ValueInfoProto) -> list[int | None] | None:
    """Sizes of the four axes, None for a dynamic one; None if there are not four axes."""
    dims = value.type.tensor_type.shape.dim
    if len(dims) != 4:
        return None
    # Some exporters write 0 or -1 for a dynamic size.
    return [dim.dim_value if dim.dim_value > 0 else None for dim in dims]


def _short(values: NDArray[np.generic]) -> str:
    shown = [f"{value:.4g}" for value in values.reshape(-1)[:3].astype(np.float64)]
    return ", ".join(shown) + (", ..." if values.size > 3 else "")
