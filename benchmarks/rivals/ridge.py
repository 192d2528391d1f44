"""MetaOptNet with ridge regression (Lee et al. 2019)."""

import torch
from torch import Tensor, nn

from benchmarks.rivals.embedding_rival import EmbeddingRival
from benchmarks.rivals.tasks import Problem


class Ridge(EmbeddingRival):
    """W minimises ||phi W^T - 2 Y||^2 + strength ||W||^2; the logits are a learned multiple of W phi."""

    def __init__(self, problem: Problem, *, strength: float) -> None:
        super().__init__(problem)
        self.strength = strength
        self.scale = nn.Parameter(torch.tensor(1.0))

    def logits(self, phi: Tensor, Y: Tensor, query: Tensor) -> Tensor:
        system = phi @ phi.T + self.strength * torch.eye(len(phi), dtype=phi.dtype)
        return self.scale * (query @ phi.T) @ torch.linalg.solve(system, 2.0 * Y)

    def learned(self) -> dict[str, float]:
        return {"scale": self.scale.item()}
