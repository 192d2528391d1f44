"""CAVIA (Zintgraf et al. 2019): only a vector of context is adapted, which scales and shifts the third layer."""

import torch
from torch import Tensor, nn

from benchmarks.rivals.network_rival import Classifier, NetworkRival, Weights
from benchmarks.rivals.tasks import Problem


class Film(nn.Module):
    """Channels (n, c, h, w) scaled and shifted by a linear function of the context, as the authors initialise it."""

    context: Tensor

    def __init__(self, size: int, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 2 * channels)
        nn.init.kaiming_uniform_(self.linear.weight, nonlinearity="linear")
        self.register_buffer("context", torch.zeros(size), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """gamma x + beta."""
        gamma, beta = self.linear(self.context).view(2, -1, 1, 1)
        return gamma * x + beta


class Cavia(NetworkRival):
    """Gradient steps on the context, from zero; everything else is meta-learned."""

    def start(self) -> Weights:
        found = dict(self.network.named_buffers())
        return {name: found[name].clone().requires_grad_() for name in found if name.endswith("context")}


def with_context(problem: Problem, ways: int, size: int) -> Classifier:
    """Conv-4 and a linear layer, with a context of `size` numbers before the third layer's ReLU."""
    network = Classifier(problem, ways)
    blocks = network.backbone.network
    if not isinstance(blocks, nn.Sequential) or not isinstance(block := blocks[2], nn.Sequential):
        raise TypeError("expected Conv-4")
    block.insert(len(block) - 1, Film(size, problem.backbone.channels))
    return network
