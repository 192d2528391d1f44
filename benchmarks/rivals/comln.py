"""COMLN (Deleu et al. 2022), by this project's own exact meta-gradients."""

import torch
from torch import Tensor, nn

from benchmarks.rivals.embedding_rival import EmbeddingRival
from benchmarks.rivals.tasks import Problem
from training.gradient_flow import gradient_flow


class Comln(EmbeddingRival):
    """A head that follows the gradient flow of the support loss from W0 up to T; W0 and log T are learned, T from 1."""

    def __init__(self, problem: Problem, ways: int) -> None:
        super().__init__(problem)
        self.W0 = nn.Parameter(torch.zeros(ways, self.backbone.embedding_size))
        self.log_T = nn.Parameter(torch.tensor(0.0))

    def start(self, phi: Tensor, Y: Tensor) -> Tensor:
        """Where the flow starts (N, d)."""
        del phi, Y
        return self.W0

    def logits(self, phi: Tensor, Y: Tensor, query: Tensor) -> Tensor:
        return query @ gradient_flow(phi, self.start(phi, Y), Y, self.log_T.exp()).T

    def learned(self) -> dict[str, float]:
        return {"T": self.log_T.exp().item()}


class ComlnPrototypes(Comln):
    """The same from alpha times the class means, for any number of classes; log alpha is learned, alpha from 1."""

    def __init__(self, problem: Problem, ways: int) -> None:
        super().__init__(problem, ways)
        del self.W0
        self.log_alpha = nn.Parameter(torch.tensor(0.0))

    def start(self, phi: Tensor, Y: Tensor) -> Tensor:
        return self.log_alpha.exp() * (Y.T @ phi) / Y.sum(dim=0)[:, None]

    def learned(self) -> dict[str, float]:
        return {**super().learned(), "alpha": self.log_alpha.exp().item()}
