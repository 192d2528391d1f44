"""MAML with checkpoints: it keeps the weights of every square root of the steps, and computes the rest twice."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def checkpointed_maml_loss(model: nn.Module, support: Any, query: Any, steps: int, rate: float) -> Tensor:
    """The query loss after `steps` of gradient descent on all weights, as `unrolled.maml_loss`."""
    names = [name for name, _ in model.named_parameters()]

    def logits(weights: tuple[Tensor, ...], images: Tensor) -> Tensor:
        return functional_call(model, dict(zip(names, weights, strict=True)), images)

    def follow(count: int, *weights: Tensor) -> tuple[Tensor, ...]:
        # `checkpoint` calls this without gradients first, and with them on the way back.
        on_the_way_back = torch.is_grad_enabled()
        for _ in range(count):
            with torch.enable_grad():
                if not on_the_way_back:
                    weights = tuple(w.detach().requires_grad_() for w in weights)
                loss = functional.cross_entropy(logits(weights, support[0]), support[1])
                gradients = torch.autograd.grad(loss, weights, create_graph=on_the_way_back)
                weights = tuple(w - rate * g for w, g in zip(weights, gradients, strict=True))
        return weights

    weights, between = tuple(model.parameters()), math.ceil(math.sqrt(steps))
    for first in range(0, steps, between):
        weights = checkpoint(follow, min(between, steps - first), *weights, use_reentrant=True)
    return functional.cross_entropy(logits(weights, query[0]), query[1])
