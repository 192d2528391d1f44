"""Tables of a batch of tasks on their way to the CPU, in one transfer."""

from collections.abc import Sequence

import torch
from torch import Tensor

from comln_serve.flow.problem import Array


def to_cpu(*tables: Tensor | Array) -> list[Array]:
    """(B, ...) float64 tables as arrays; those on another device are transferred together."""
    tensors = [table.detach() for table in tables if isinstance(table, Tensor)]
    if tensors[0].device.type != "cpu":
        tensors = unpack(pack(tensors).cpu(), tensors)
    moved = iter(tensors)
    return [next(moved).contiguous().numpy() if isinstance(table, Tensor) else table for table in tables]


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """(B, ...) tensors concatenated to (B, n), to be transferred together."""
    return torch.cat([tensor.reshape(len(tensor), -1) for tensor in tensors], dim=1)


def unpack(packed: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of `pack`; `like` are tensors of the original shapes."""
    parts = packed.split([tensor[0].numel() for tensor in like], dim=1)
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
