"""SGD and the course of its learning rate."""

import math
from collections.abc import Callable
from typing import Any

import torch


def sgd(groups: list[dict[str, Any]], lr: float, momentum: float) -> torch.optim.SGD:
    """SGD with Nesterov momentum (where there is momentum) over groups that may override `lr`."""
    return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0)


def half_cosine(updates: int, warmup: int = 0) -> Callable[[int], float]:
    """Factor of the learning rate: rises over `warmup` updates, then falls to 0 at `updates`."""

    def factor(update: int) -> float:
        if update < warmup:
            return (update + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * min(1.0, update / updates)))

    return factor


def steps(lr: float, changes: tuple[tuple[int, float], ...]) -> Callable[[int], float]:
    """Factor of the learning rate `lr` that becomes each of (update, rate) from its update on."""

    def factor(update: int) -> float:
        reached = [rate for at, rate in changes if at <= update]
        return reached[-1] / lr if reached else 1.0

    return factor
