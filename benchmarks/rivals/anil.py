"""ANIL (Raghu et al. 2020): MAML's gradient steps on the head alone."""

import torch
from torch import Tensor, nn

from benchmarks.anil import anil_head
from benchmarks.rivals.embedding_rival import EmbeddingRival
from benchmarks.rivals.tasks import Problem


class Anil(EmbeddingRival):
    """`steps` of gradient descent from a learned W0, unrolled."""

    def __init__(self, problem: Problem, ways: int, *, steps: int, rate: float) -> None:
        super().__init__(problem)
        self.W0 = nn.Parameter(torch.zeros(ways, self.backbone.embedding_size))
        self.steps, self.rate = steps, rate

    def logits(self, phi: Tensor, Y: Tensor, query: Tensor) -> Tensor:
        return query @ anil_head(self.W0, phi, Y, self.steps, self.rate).T
