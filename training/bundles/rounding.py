"""Rounds weights to integers so that the outputs of their products change least on given images.

Weights are rounded one input at a time. The error that this makes in the outputs is made up for by the weights of the
inputs that are not rounded yet, as far as the second moments of the inputs allow: GPTQ (Frantar et al., ICLR 2023,
arXiv 2210.17323). Rounding each weight to the nearest integer would leave several times that error, since the inputs
of a layer depend on one another.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from training.backbones.onnx_nodes import attributes_of, names_read

# Two products of an activation of 0 to 255 and a weight of -64 to 64 add up to 32,640 at most, so that CPUs without
# VNNI, which add them in 16 bits, do not overflow.
LARGEST = 64

_DAMPING = 0.01  # of the mean second moment, so that the moments can be inverted
_MOST_INPUTS = 8192  # of an output; a matrix of their moments takes 0.5 GB in float64
_BLOCK = 128  # inputs whose errors are carried on to all others at once, which takes a tenth of the time
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Rounded:
    """A product's weights: the name of the tensor, the axis of the outputs, and each output's scale."""

    weights: str
    axis: int
    scales: NDArray[np.float32]


def round_weights(model: ModelProto, names: set[str], images: NDArray[np.uint8]) -> list[Rounded]:
    """Change the weights of products, in place, to multiples from -64 to 64 of a scale for each output.

    Products whose weights are not constant or used elsewhere, too, convolutions of other than two dimensions and
    outputs of more than 8192 inputs stay as they are.

    Args:
        model: uint8 images (batch, S, S, 3) to float32 embeddings. names: of nodes: Conv, Gemm or MatMul.
        images: (n, S, S, 3), on which the outputs are to change least.
    """
    uses = Counter(name for node in model.graph.node for name in names_read(node))
    uses.update(value.name for value in model.graph.output)
    found = [Product.of(node, model.graph) for node in model.graph.node if node.name in names]
    products = [product for product in found if product is not None and uses[product.weights] == 1]
    if not products:
        return []
    sums: list[Any] = [0] * len(products)
    for inputs in _activations(model, sorted({product.input for product in products}), images):
        for i, product in enumerate(products):
            rows = product.rows(inputs[product.input])
            sums[i] = sums[i] + (rows @ rows.transpose(1, 2) / rows.shape[2]).numpy()
    results = list[Rounded]()
    for product in products:
        moments = sums.pop(0) / len(images)
        if not np.isfinite(moments).all():
            raise ValueError(f"the inputs of {product.node.name} are not finite on the calibration images")
        results.append(product.round(model.graph, moments))
    return results


@dataclass(frozen=True)
class Product:
    """A node that multiplies its input by constant weights."""

    node: NodeProto
    weights: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, node: NodeProto, graph: GraphProto) -> "Product | None":
        """None for a node whose weights are not to be rounded here."""
        found = [tensor for tensor in graph.initializer if len(node.input) > 1 and tensor.name == node.input[1]]
        if not found or found[0].data_type != TensorProto.FLOAT or attributes_of(node).get("transA"):
            return None
        product = cls(node, node.input[1], tuple(found[0].dims))
        known = (node.op_type, len(product.shape)) in {("Conv", 4), ("Gemm", 2), ("MatMul", 2)}
        return product if known and prod(product.shape) // product.shape[product.axis] <= _MOST_INPUTS else None

    @property
    def input(self) -> str:
        """The name of what is multiplied."""
        return self.node.input[0]

    @property
    def axis(self) -> int:
        """The axis of the weights along which there is one entry for each output."""
        return 0 if self.node.op_type == "Conv" or attributes_of(self.node).get("transB") else 1

    @property
    def groups(self) -> int:
        """How many groups of outputs have inputs of their own."""
        return int(attributes_of(self.node).get("group", 1))

    def rows(self, values: NDArray[np.float32]) -> torch.Tensor:
        """The inputs of all positions (groups, inputs of an output, positions) from the node's input."""
        tensor = torch.from_numpy(values)
        if self.node.op_type != "Conv":
            return tensor.reshape(-1, tensor.shape[-1]).T[None]
        given = attributes_of(self.node)
        spacing = {"dilation": given.get("dilations", [1, 1]), "stride": given.get("strides", [1, 1])}
        top, left, bottom, right = self._padding(tensor.shape[2:], **spacing)
        padded = torch.nn.functional.pad(tensor, (left, right, top, bottom))
        patches = torch.nn.functional.unfold(padded, self.shape[2:], **spacing)
        batch, _, positions = patches.shape
        grouped = patches.reshape(batch, self.groups, -1, positions)
        return grouped.permute(1, 2, 0, 3).reshape(self.groups, -1, batch * positions)

    def _padding(self, sizes: Sequence[int], dilation: list[int], stride: list[int]) -> list[int]:
        """Zeros of a convolution around maps of these sizes: above, left, below, right."""
        given = attributes_of(self.node)
        rule: bytes = given.get("auto_pad", b"NOTSET")
        if not rule.startswith(b"SAME"):
            return list(given.get("pads", [0, 0, 0, 0]))
        before, after = list[int](), list[int]()
        for size, kernel, d, s in zip(sizes, self.shape[2:], dilation, stride, strict=True):
            total = max((ceil(size / s) - 1) * s + d * (kernel - 1) + 1 - size, 0)
            before.append(total // 2 if rule == b"SAME_UPPER" else total - total // 2)
            after.append(total - before[-1])
        return before + after

    def round(self, graph: GraphProto, moments: Matrix) -> Rounded:
        """Change the weights; `moments` (groups, inputs, inputs) of `rows`."""
        tensor = next(tensor for tensor in graph.initializer if tensor.name == self.weights)
        first = np.moveaxis(numpy_helper.to_array(tensor), self.axis, 0).astype(np.float64)
        outputs = first.reshape(self.groups, len(first) // self.groups, -1)
        scales = np.abs(outputs).max(axis=2) / LARGEST
        scales[scales < np.finfo(np.float32).tiny] = 1.0
        values = scales[..., None] * rounded(outputs / scales[..., None], moments)
        changed = np.moveaxis(values.reshape(first.shape), 0, self.axis).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(changed), self.weights))
        return Rounded(self.weights, self.axis, scales.reshape(-1).astype(np.float32))


def rounded(weights: Matrix, moments: Matrix) -> Matrix:
    """Integers from -64 to 64 near weights, whose products with the inputs are near those of the weights.

    Args:
        weights: (groups, outputs, inputs) from -64 to 64. moments: E[x x^T] of the inputs, (groups, inputs, inputs).
    """
    count = weights.shape[2]
    diagonal = np.diagonal(moments, axis1=1, axis2=2)
    # Inputs of large second moment come first, while many others are left to make up for their errors.
    order = np.argsort(-diagonal, axis=1, kind="stable")
    left = np.take_along_axis(weights, order[:, None, :], axis=2)
    damped = np.take_along_axis(np.take_along_axis(moments, order[:, :, None], 1), order[:, None, :], 2).astype(float)
    every = np.arange(count)
    damped[:, every, every] += _DAMPING * diagonal.mean(axis=1, keepdims=True) + np.finfo(np.float32).tiny
    upper = np.linalg.cholesky(np.linalg.inv(damped)).swapaxes(1, 2)
    integers, errors = np.empty_like(left), np.empty_like(left)
    for start in range(0, count, _BLOCK):
        end = min(start + _BLOCK, count)
        for i in range(start, end):
            integers[:, :, i] = np.clip(np.rint(left[:, :, i]), -LARGEST, LARGEST)
            errors[:, :, i] = (left[:, :, i] - integers[:, :, i]) / upper[:, i, i, None]
            left[:, :, i + 1 : end] -= errors[:, :, i, None] * upper[:, None, i, i + 1 : end]
        left[:, :, end:] -= errors[:, :, start:end] @ upper[:, start:end, end:]
    result = np.empty_like(integers)
    np.put_along_axis(result, order[:, None, :], integers, axis=2)
    return result


def _activations(
    model: ModelProto, names: list[str], images: NDArray[np.uint8]
) -> Iterator[dict[str, NDArray[np.float32]]]:
    """The tensors of these names, for one image after the other."""
    watched = ModelProto()
    watched.CopyFrom(model)
    known = {value.name for value in watched.graph.output}
    for name in names:
        if name not in known:
            watched.graph.output.append(onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    session = ort.InferenceSession(watched.SerializeToString(), providers=["CPUExecutionProvider"])
    for image in images:
        values = session.run(names, {session.get_inputs()[0].name: image[None]})
        yield {name: np.asarray(value) for name, value in zip(names, values, strict=True)}
