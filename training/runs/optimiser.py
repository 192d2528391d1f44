"""SGD with its groups of parameters, and the schedule of its learning rate."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from training.config import Config, OptimiserConfig
from training.model import MetaModel


def sgd(groups: list[dict[str, Any]], lr: float, momentum: float) -> torch.optim.SGD:
    """SGD with Nesterov momentum (if momentum is not 0) over groups that may override `lr`."""
    return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0)


def weight_decay_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Weights, which decay, and the others (biases, and batch norm's scales), which do not."""
    every = list(parameters)
    return [
        {"params": [p for p in every if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in every if p.ndim <= 1]},
    ]


def episode_sgd(model: MetaModel, config: OptimiserConfig) -> torch.optim.SGD:
    """The optimiser of meta-training: `lr` for the backbone and W0, `head_lr` for the head's scalars."""
    decaying, others = weight_decay_groups(model.backbone.parameters(), config.weight_decay)
    if model.W0 is not None:
        others["params"].append(model.W0)
    if config.decay_all:
        others["weight_decay"] = config.weight_decay
    head = {"params": model.head_parameters(), "lr": config.head_lr}
    return sgd([decaying, others, head], config.lr, config.momentum)


def learning_rate_factor(config: Config) -> Callable[[int], float]:
    """Factor of the learning rates in meta-training, by update."""
    settings = config.optimiser
    if settings.steps is not None:
        return steps(settings.lr, settings.steps)
    return half_cosine(config.updates, settings.warmup)


def half_cosine(updates: int, warmup: int = 0) -> Callable[[int], float]:
    """A factor that rises linearly over `warmup` updates, then falls to 0 at `updates`."""

    def factor(update: int) -> float:
        if update < warmup:
            return (update + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * min(1.0, update / updates)))

    return factor


def steps(lr: float, changes: tuple[tuple[int, float], ...]) -> Callable[[int], float]:
    """A factor of `lr` that gives, for each (update, rate) of `changes`, this rate from that update on."""

    def factor(update: int) -> float:
        reached = [rate for at, rate in changes if at <= update]
        return reached[-1] / lr if reached else 1.0

    return factor
