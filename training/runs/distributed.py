"""Training in several processes (`torchrun`), each with a share of every update's tasks.

Gradients are those of one process with the whole batch, to rounding: they are averaged, and batch
norm computes its statistics over the images of all processes.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn


@dataclass(frozen=True)
class Group:
    """The processes that train together, as seen by this one.

    Attributes:
        rank: number of this process; process 0 validates, writes and prints. size: their number.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0


ALONE = Group()


def join() -> tuple[Group, torch.device]:
    """This process's group, from the environment that `torchrun` sets, and its device."""
    cuda = torch.cuda.is_available()
    if "RANK" not in os.environ:
        return ALONE, torch.device("cuda" if cuda else "cpu")
    device = torch.device("cpu")
    if cuda:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if cuda else "gloo")
    return Group(distributed.get_rank(), distributed.get_world_size()), device


def wait(group: Group) -> None:
    """Return once every process of the group has called this."""
    if group.size > 1:
        distributed.barrier()


def leave(group: Group) -> None:
    """End the group that `join` returned."""
    if group.size > 1:
        distributed.destroy_process_group()


def average_gradients(parameters: Iterable[nn.Parameter], group: Group) -> None:
    """Replace every gradient by its mean over the processes, in one exchange per dtype."""
    if group.size == 1:
        return
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            if parameter.grad is None:  # every process must exchange the same tensors
                parameter.grad = torch.zeros_like(parameter)
            by_dtype.setdefault(parameter.dtype, []).append(parameter.grad)
    for gradients in by_dtype.values():
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        distributed.all_reduce(flat)
        flat /= group.size
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


class _Sum(torch.autograd.Function):
    """Sum over the processes; its derivative is the sum of their derivatives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004 (autograd's signature)
        total = x.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        total = gradients[0].clone()
        distributed.all_reduce(total)
        return total


class SharedBatchNorm2d(nn.BatchNorm2d):
    """Batch norm over the images of all processes, on any device (torch's own requires CUDA)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """(B, C, H, W) -> the same shape; in training with the statistics of all processes' batches."""
        if not self.training:
            return super().forward(input)
        wide = input.float()
        count = _Sum.apply(wide.new_tensor(float(wide.numel() / wide.shape[1])))
        mean = _Sum.apply(wide.sum(dim=(0, 2, 3))) / count
        centred = wide - mean[:, None, None]
        variance = _Sum.apply(centred.square().sum(dim=(0, 2, 3))) / count
        with torch.no_grad():
            momentum = 0.1 if self.momentum is None else self.momentum
            for running, now in ((self.running_mean, mean), (self.running_var, variance * count / (count - 1))):
                if running is not None:
                    running.lerp_(now.to(running.dtype), momentum)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
        scale = (variance + self.eps).rsqrt() * self.weight
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(input.dtype)


def share_batch_norm(model: nn.Module, group: Group) -> None:
    """Let the batch norms of `model` compute their statistics over the group."""
    if group.size == 1:
        return
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SharedBatchNorm2d
