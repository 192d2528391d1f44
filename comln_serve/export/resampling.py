"""A bundle's resize-and-crop policy as ONNX nodes. They give the pixels of `imaging`, bit for bit.

Pillow resamples one axis after the other. Along an axis, an output pixel is a weighted sum of input
pixels, with weights rounded to 22 binary digits and the sum rounded to 8 bits. Here the weights of
an axis are a matrix K (S, length), which the graph computes from the image's size. A product with K
in float64, which represents these sums exactly, resamples the axis.

ONNX's own operator, Resize with antialiasing, is not used: ONNX Runtime's version differs from
Pillow by up to 27 levels with the bicubic filter, has no Lanczos filter, and cannot start at half a
pixel, as a centred crop may. The operators used here have the same meaning in every operator set
from `LEAST_OPSET` on, so they can be added to a backbone of any of these.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from comln_serve.export.expressions import Nodes, Tensor
from comln_serve.imaging import Preprocessing

LEAST_OPSET = 11  # has Range

_DOUBLE, _FLOAT, _UINT8 = TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.UINT8
_FIXED_POINT = 2.0**22


def resample(nodes: Nodes, images: Tensor, policy: Preprocessing) -> Tensor:
    """Resample images (batch, height, width, 3) uint8 RGB to (batch, S, S, 3) uint8 RGB."""
    shape = nodes.op("Shape", images)
    height, width = (nodes.op("Gather", shape, np.array(axis)).cast(_DOUBLE) for axis in (1, 2))
    rows, columns = _axis(height, width, policy), _axis(width, height, policy)
    vertical = _weights(rows, policy)
    horizontal = _weights(columns, policy).transpose(1, 0)
    pixels = images.transpose(0, 3, 1, 2).cast(_DOUBLE)
    square = nodes.choose(
        _vertical_first(rows, columns),
        lambda: _to_8_bits(_to_8_bits(vertical @ pixels) @ horizontal),
        lambda: _to_8_bits(vertical @ _to_8_bits(pixels @ horizontal)),
    ).transpose(0, 2, 3, 1)
    if policy.resize == "pad":
        shown = nodes.op("And", rows.shown.reshape(-1, 1, 1), columns.shown.reshape(1, -1, 1))
        square = nodes.op("Where", shown, square, np.array(policy.background, dtype=np.float64))
    return square.cast(_UINT8)


@dataclass(frozen=True)
class _Axis:
    """How an axis of the output maps to the same axis of the input. All tensors are float64.

    Attributes:
        length: input pixels.
        start, span: first pixel and length of the input's part that the output shows.
        place: (S,) index of each output pixel, counted from the first that shows the input.
        inside: number of output pixels that show the input.
    """

    length: Tensor
    start: Tensor | float
    span: Tensor
    place: Tensor
    inside: Tensor | float

    @property
    def shown(self) -> Tensor:
        """(S,) bool: the output pixels that show the input."""
        nodes = self.place.nodes
        return nodes.op("And", nodes.op("Less", -0.5, self.place), self.place < self.inside)


def _axis(length: Tensor, other: Tensor, policy: Preprocessing) -> _Axis:
    """The axis of length `length`, by the policy as `imaging.preprocessing` applies it."""
    nodes, size = length.nodes, float(policy.image_size)
    place = nodes.op("Identity", np.arange(size))
    if policy.resize == "stretch":
        return _Axis(length, 0.0, length, place, size)
    if policy.resize == "crop":
        side = nodes.op("Min", length, other) * policy.crop_fraction
        first = (length - side) / 2.0
        # Pillow keeps the sides of a box in float32.
        start, end = first.cast(_FLOAT), (first + side).cast(_FLOAT)
        return _Axis(length, start.cast(_DOUBLE), (end - start).cast(_DOUBLE), place, size)
    scale = size / nodes.op("Max", length, other)
    # Round rounds halves to even, as Python does.
    inside = nodes.op("Max", nodes.op("Round", length * scale), 1.0)
    offset = nodes.op("Floor", (size - inside) / 2.0)
    return _Axis(length, 0.0, length, place - offset, inside)


def _vertical_first(rows: _Axis, columns: _Axis) -> Tensor:
    """Whether Pillow 13 begins with the height: if it loses more than twice the width's pixels.

    The order changes the last digit, as the result between the axes is rounded to 8 bits. Earlier
    versions begin with the width, except for extreme sizes.
    """
    rows_lost, columns_lost = rows.length - rows.inside, columns.length - columns.inside
    op = rows.place.nodes.op
    return op("And", op("Less", 0.0, rows_lost), columns_lost * 2.0 < rows_lost)


def _weights(axis: _Axis, policy: Preprocessing) -> Tensor:
    """K (S, length): the weight of each input pixel in each output pixel."""
    nodes, one_filter = axis.place.nodes, _FILTERS[policy.interpolation]
    pixel = nodes.op("Range", 0.0, axis.length, 1.0)
    ratio = axis.span / axis.inside
    centre = ((axis.place + 0.5) * ratio + axis.start).reshape(-1, 1)
    wideness = 1.0 / nodes.op("Max", ratio, 1.0)  # a shrinking filter spans output pixels
    raw = one_filter(abs((pixel - centre + 0.5) * wideness))
    total = raw @ (pixel * 0.0 + 1.0).reshape(-1, 1)
    return nodes.op("Round", raw / total * _FIXED_POINT) / _FIXED_POINT


def _to_8_bits(sums: Tensor) -> Tensor:
    nodes = sums.nodes
    return nodes.op("Min", nodes.op("Max", nodes.op("Floor", sums + 0.5), 0.0), 255.0)


# Pillow's filters, as functions of the distance x >= 0.


def _bilinear(x: Tensor) -> Tensor:
    return x.nodes.op("Max", 1.0 - x, 0.0)


def _bicubic(x: Tensor) -> Tensor:
    near = (x * 1.5 - 2.5) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    op = x.nodes.op
    return op("Where", x < 1.0, near, op("Where", x < 2.0, far, 0.0))


def _lanczos(x: Tensor) -> Tensor:
    return x.nodes.op("Where", x < 3.0, _sinc(x) * _sinc(x / 3.0), 0.0)


def _sinc(x: Tensor) -> Tensor:
    t = x.nodes.op("Max", x, 1e-30) * math.pi  # sin(t) / t is 1 there
    return x.nodes.op("Sin", t) / t


_FILTERS: dict[str, Callable[[Tensor], Tensor]] = {"bilinear": _bilinear, "bicubic": _bicubic, "lanczos": _lanczos}
