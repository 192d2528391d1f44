"""INT8: a backbone's graph with 8-bit weights and activations, by ONNX Runtime's quantiser.

The convolutions and matrix products, and the nodes between them, compute in 8 bits. The nodes before
the first of them (pixels to normalised floats) and after the last (pooling, normalisation, scale)
stay in float32. So do the first few products where they are asked to: rounding errors of the first layers
go through all others, and with their few channels 8 bits may even take longer.
"""

import tempfile
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from training.backbones.onnx_graph import image_input
from training.backbones.onnx_nodes import opset
from training.bundles.rounding import Rounded, round_weights
from training.errors import ExportError

REMEDY = "export in float32, without --int8"
_LEAST_OPSET = 13  # the first with scales per channel
_PRODUCTS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}


def quantise(model: ModelProto, images: NDArray[np.uint8], float_layers: int = 0) -> ModelProto:
    """The graph in QDQ form: int8 weights with a scale per channel, uint8 activations.

    The weights go from -64 to 64 only, so that no x86 CPU overflows with its fastest instructions
    (`training.bundles.rounding`).

    Args:
        model: uint8 RGB images (batch, S, S, 3) -> float32 (batch, d). images: (n, S, S, 3), whose
            activations determine the ranges, and on which the rounding errors are made small. float_layers: how many
            products, in the order of the graph, stay in float32, with the nodes before and between them.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="comln-int8-") as workshop:
            # Files only: the quantiser would remove the weights from a graph given in memory.
            given, prepared, quantised = (
                Path(workshop) / name for name in ("given.onnx", "prepared.onnx", "int8.onnx")
            )
            modern = opset(model) >= _LEAST_OPSET
            onnx.save(model if modern else version_converter.convert_version(model, _LEAST_OPSET), given)
            # All sizes except the batch are fixed, so symbolic shape inference is not needed.
            quant_pre_process(given, prepared, skip_symbolic_shape=True)
            floats = onnx.load(prepared)
            for number, node in enumerate(floats.graph.node):
                node.name = node.name or f"unnamed_{number}"
            outside = _outside(floats.graph.node, float_layers)
            inside = {node.name for node in floats.graph.node if node.op_type in _PRODUCTS} - set(outside)
            rounded = round_weights(floats, inside, images)
            onnx.save(floats, prepared)
            quantize_static(
                prepared,
                quantised,
                _Images(image_input(given, model.graph).name, images),
                per_channel=True,
                reduce_range=True,  # -64 to 64 for the weights that were not rounded, too
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=outside,
                extra_options={"TensorQuantOverrides": {one.weights: _scales(one) for one in rounded}},
            )
            result = onnx.load(quantised)
    except Exception as error:  # the quantiser raises many types
        raise ExportError(f"the graph could not be quantised: {error}; {REMEDY}") from error
    if not any(node.op_type == "DequantizeLinear" for node in result.graph.node):
        after = f" after the first {float_layers} of them" if float_layers else ""
        raise ExportError(
            f"the graph holds none of {', '.join(sorted(_PRODUCTS))}{after}, so nothing was quantised; {REMEDY}"
        )
    return result


def cosines(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosine (n,) between corresponding rows of two (n, d) arrays; 0 if one of the rows is 0."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return (a * b).sum(axis=1) / np.maximum(norms, np.finfo(np.float64).tiny)


class _Images(CalibrationDataReader):
    """Images one at a time, so that the activations of only one are in memory."""

    def __init__(self, name: str, images: NDArray[np.uint8]) -> None:
        self._batches = iter([{name: image[None]} for image in images])

    def get_next(self) -> dict[str, Any] | None:  # type: ignore[override]
        return next(self._batches, None)


def _scales(rounded: Rounded) -> list[dict[str, Any]]:
    """What ONNX Runtime's quantiser is told of weights that are rounded already."""
    common = {"axis": rounded.axis, "quant_type": QuantType.QInt8, "zero_point": np.array(0, np.int8)}
    return [{**common, "scale": scale} for scale in rounded.scales]


def _outside(ordered: Sequence[NodeProto], float_layers: int) -> list[str]:
    """Names of the nodes that are before all products or after all products, not counting the first `float_layers`."""
    products = {node.name for node in [node for node in ordered if node.op_type in _PRODUCTS][float_layers:]}
    after_a_product = _reached(ordered, products)
    before_a_product = _reached([_reversed(node) for node in reversed(ordered)], products)
    return [node.name for node in ordered if node.name not in after_a_product & before_a_product]


def _reached(nodes: Sequence[NodeProto], products: AbstractSet[str]) -> set[str]:
    """Names of the products and of the nodes that depend on one."""
    found, tensors = set[str](), set[str]()
    for node in nodes:
        if node.name in products or tensors.intersection(node.input):
            found.add(node.name)
            tensors.update(node.output)
    return found


def _reversed(node: NodeProto) -> NodeProto:
    """The node with inputs and outputs exchanged."""
    return onnx.helper.make_node(node.op_type, list(node.output), list(node.input), name=node.name)
