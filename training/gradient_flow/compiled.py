"""A batch of reduced flows on the CPU's cores: each task by itself, with the compiled kernels."""

import numpy as np
import torch
from torch import Tensor

from training.flow_steps import Flow, ReducedProblem, Solver, march
from training.gradient_flow import transfers
from training.gradient_flow.adjoint import AdjointMethod
from training.gradient_flow.forward import ForwardMethod
from training.gradient_flow.workers import thread_map

METHODS: dict[str, type[AdjointMethod | ForwardMethod]] = {"adjoint": AdjointMethod, "forward": ForwardMethod}


class ValueOnly(Flow):
    """s(T) without derivatives, for when no gradient is needed."""

    def __init__(self, problem: ReducedProblem, solver: Solver) -> None:
        super().__init__(problem, solver)
        for chunk in march(problem, solver, 64):
            self.last = chunk


class CompiledBatch:
    """s(T) of B tasks, and its derivatives.

    Attributes:
        state: (B, N, M) s(T), on the device of the tables.
    """

    def __init__(
        self, problems: list[ReducedProblem], solver: Solver, method: str | None, device: torch.device
    ) -> None:
        """Solve the problems; `method` None: without derivatives."""
        kind = ValueOnly if method is None else METHODS[method]
        self._solutions = thread_map(lambda problem: kind(problem, solver), problems)
        self.state = torch.from_numpy(np.stack([solution.state for solution in self._solutions])).to(device)

    def pull_back(self, g: Tensor, *, weights: bool) -> Tensor:
        """Derivatives of the loss, given that in s(T), g (B, N, M).

        Returns:
            (B, (N + M) M + M + 2) float64 on g's device: for each task dLoss/dL0 (N, M) above dLoss/dK + dLoss/dK^T
            (M, M), then dLoss/dweights (zeros if not wanted), dLoss/dT and dLoss/dlam. Packed, so that a single
            transfer is needed.
        """
        (rows,) = transfers.to_cpu(g)
        B, N, M = rows.shape
        size = (N + M) * M
        packed = np.zeros((B, size + M + 2))

        def pull_back(b: int) -> None:
            solution, out = self._solutions[b], packed[b]
            table = out[:size].reshape(N + M, M)
            table[:N], table[N:], dw, out[-1] = solution.pull_back(rows[b], weights=weights)  # type: ignore[union-attr]
            if weights:
                out[size:-2] = dw
            out[-2] = np.vdot(rows[b], solution.end_rate())

        thread_map(pull_back, range(B))
        return torch.from_numpy(packed).to(g.device)
