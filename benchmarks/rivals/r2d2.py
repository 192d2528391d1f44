"""R2D2 (Bertinetto et al. 2019): ridge regression whose strength is learned."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.rivals.embedding_rival import EmbeddingRival
from benchmarks.rivals.tasks import Problem


class R2D2(EmbeddingRival):
    """W minimises ||x W^T - Y||^2 / M + lambda ||W||^2 on x = (phi, 1); the logits are scale W x + bias.

    log lambda, scale and bias are learned.
    """

    def __init__(self, problem: Problem, *, strength: float) -> None:
        super().__init__(problem)
        self.log_lambda = nn.Parameter(torch.tensor(strength).log())
        self.scale, self.bias = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(0.0))

    def logits(self, phi: Tensor, Y: Tensor, query: Tensor) -> Tensor:
        x, q = (functional.pad(rows, (0, 1), value=1.0) for rows in (phi, query))
        system = x @ x.T + len(x) * self.log_lambda.exp() * torch.eye(len(x), dtype=x.dtype)
        return self.scale * (q @ x.T) @ torch.linalg.solve(system, Y) + self.bias

    def learned(self) -> dict[str, float]:
        return {"lambda": self.log_lambda.exp().item(), "scale": self.scale.item()}
