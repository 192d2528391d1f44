"""MAML (Finn et al. 2017), its first-order form, and Meta-SGD (Li et al. 2017)."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from benchmarks.rivals.network_rival import NetworkRival


class Maml(NetworkRival):
    """All weights of the network are adapted from a learned start, with one fixed rate."""


class MetaSgd(NetworkRival):
    """The same with a learned rate for every weight, one step."""

    def __init__(self, network: nn.Module, *, steps: int, rate: float) -> None:
        super().__init__(network, steps=steps, rate=rate)
        self.learned_rates = nn.ParameterList([torch.full_like(p, rate) for p in network.parameters()])

    def rates(self) -> Mapping[str, Tensor | float]:
        return dict(zip(self.start(), self.learned_rates, strict=True))

    def learned(self) -> dict[str, float]:
        return {"mean rate": torch.cat([rate.detach().flatten() for rate in self.learned_rates]).mean().item()}
