"""The paper's forward sensitivity on torchdiffeq: any of its solvers, on the tensors' own device.

The system is that of `training.gradient_flow.forward`, s with its tangents B, z, ds/dlam and ds/dw, here as one tensor
(B tasks, 1 + C, N, M) whose row 0 is s and whose other rows are the tangents. torchdiffeq integrates all tasks of a
batch together, with one sequence of steps, so the stiffest task sets the steps of all.

Every task is rescaled before: with a the largest absolute row sum of K,

    K / a,   s a,   w a T,   lam T,   time t / T

give the same flow from time 0 to 1, in which s is in units of logits, as are the tangents. The tolerances then mean the
same in every entry, whatever the task. The error norm is the largest entry: in torchdiffeq's root mean square the M^3 N
entries of z would hide an error of s. Steps end at T, so that nothing is interpolated.

A solver of equal steps gives the exact derivative of its own result, however far that is from the flow: nothing checks
that the steps are short enough.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchdiffeq import odeint

from comln_serve.flow import FlowError, effective_horizon
from comln_serve.flow.kernels import comes_to_rest
from comln_serve.flow.problem import Array
from training.config.flow import FIXED_STEP, TORCHDIFFEQ
from training.flow_steps import ReducedProblem, Solver, step_count


class OdeintBatch:
    """s(T) of B tasks with the tangents, on a device.

    Attributes:
        state: (B, N, M) s(T).
    """

    def __init__(
        self, problems: Sequence[ReducedProblem], solver: Solver, *, tangents: bool, device: torch.device
    ) -> None:
        """Integrate; without `tangents` s alone, for when no gradient is needed.

        Raises:
            FlowError: the solver could not reach T; the message says what to change.
        """

        def stacked(arrays: list[Array] | list[float]) -> Tensor:
            return torch.from_numpy(np.asarray(arrays)).to(device)

        size = stacked([max(float(np.abs(p.K).sum(axis=1).max()), np.finfo(float).tiny) for p in problems])
        ends = [effective_horizon(p.T, p.lam) for p in problems]
        T, lam = stacked(ends), stacked([p.lam for p in problems])
        w = stacked([p.w for p in problems])
        self._size, self._T, self._lam, self._w = size, T, lam, w
        self._moves = stacked([float(end == p.T) for end, p in zip(ends, problems, strict=True)])
        self._K = (stacked([p.K for p in problems]) / size[:, None, None])[:, None]
        self._L0, self._Y = stacked([p.L0 for p in problems]), stacked([p.Y for p in problems])
        self._mean_w = w.mean(dim=1).clamp_min(np.finfo(float).tiny)
        B, N, M = self._L0.shape
        self._pairs = torch.triu_indices(M, M, device=device)
        self._first_z = N * M
        self._first_w = self._first_z + self._pairs.shape[1] + 1  # after ds/dlam
        rows = 1 + (self._first_w + M if tangents else 0)
        start = torch.zeros(B, rows, N, M, dtype=torch.float64, device=device)
        at_rest = any(comes_to_rest(p.Y, p.w, p.lam) for p in problems)
        self._end = _solve(self._field, start, max(ends), solver, at_rest=at_rest)
        self.state = self._end[:, 0] / size[:, None, None]

    def pull_back(self, g: Tensor, *, weights: bool) -> Tensor:
        """As `training.gradient_flow.compiled.CompiledBatch.pull_back`, on the device."""
        B, N, M = g.shape
        size = self._size[:, None]
        found = (self._end[:, 1:].flatten(2) @ g.flatten(1)[..., None])[..., 0] / size  # (B, C)
        dL0, dz, dlam, dw = found.split([N * M, self._pairs.shape[1], 1, M], dim=1)
        dK = torch.empty(B, M, M, dtype=g.dtype, device=g.device)
        dK[:, self._pairs[0], self._pairs[1]] = dK[:, self._pairs[1], self._pairs[0]] = dz / size
        rate = self._w[:, None] * self._residual(self._probabilities(self._end[:, :1] @ self._K.mT))
        rate = (rate - self._lam[:, None, None] * self.state) * self._moves[:, None, None]
        dw = dw / self._mean_w[:, None] if weights else torch.zeros_like(dw)
        dT, dlam = (g * rate).sum((1, 2)), dlam * self._T[:, None]
        return torch.cat([dL0, dK.flatten(1), dw, dT[:, None], dlam], dim=1)

    def _field(self, _time: Tensor, y: Tensor) -> Tensor:
        """Rate of s and of the tangents (B, 1 + C, N, M), in the rescaled time."""
        N, M = y.shape[2:]
        s, pace = y[:, 0], (self._size * self._T)[:, None, None]
        moved = y @ self._K.mT  # minus the change of the logits
        p = self._probabilities(moved[:, :1])
        residual, w = self._residual(p), self._w[:, None] * pace
        rate = -(self._lam * self._T)[:, None, None, None] * y
        rate[:, 0] += w * residual
        if y.shape[1] == 1:
            return rate
        change, out = moved[:, 1:], rate[:, 1:]
        logits = change[:, : N * M].view(-1, N * M, N * M)
        logits.diagonal(dim1=1, dim2=2).sub_(1.0)
        first, second = self._pairs
        columns = torch.arange(self._first_z, self._first_z + len(first), device=y.device)
        change[:, columns, :, first] += s[:, :, second].permute(2, 0, 1)
        change[:, columns, :, second] += s[:, :, first].permute(2, 0, 1)
        # -A change, relative to the likeliest class: where p is nearly one-hot, the rest cancels.
        top = p.argmax(dim=1)[:, None, None].expand(-1, change.shape[1], 1, M)
        change -= change.gather(2, top)
        q = p[:, None]
        out -= w[:, None] * q * (change - (q * change).sum(dim=2, keepdim=True))
        out[:, self._first_w - 1] -= s
        own = torch.arange(M, device=y.device)
        out[:, self._first_w + own, :, own] += ((self._mean_w[:, None, None] * pace) * residual).permute(2, 0, 1)
        return rate

    def _probabilities(self, moved: Tensor) -> Tensor:
        """p (B, N, M) for minus the change of the logits (B, 1, N, M)."""
        return torch.softmax(self._L0 - moved[:, 0], dim=1)

    def _residual(self, p: Tensor) -> Tensor:
        """p - Y (B, N, M); at a one-hot label minus the sum of the others, which keeps its digits."""
        hot = self._Y == 1.0
        others = p.masked_fill(hot, 0.0).sum(dim=1, keepdim=True)
        return torch.where(hot, -others, p - self._Y)


def _solve(
    field: Callable[[Tensor, Tensor], Tensor], start: Tensor, T: float, solver: Solver, *, at_rest: bool
) -> Tensor:
    """The state at time 1. T is the longest horizon of the batch; at_rest: one of the flows comes to rest."""
    name = solver.name.removeprefix(TORCHDIFFEQ)
    options: dict[str, object] = {}
    if name in FIXED_STEP:
        if T == 0.0:
            return start
        step_count(T, solver)  # refuses too many
        options["step_size"] = float(solver.step_size or 0.0) / T
    elif name == "scipy_solver":
        options["solver"] = "DOP853"  # LSODA, its default, takes memory with the square of the state
    else:
        options |= {
            "norm": lambda error: error.abs().max(),
            "max_num_steps": min(solver.max_steps, 2**31 - 1),
            "step_t": torch.ones(1, dtype=torch.float64, device=start.device),
        }
    times = torch.tensor([0.0, 1.0], dtype=torch.float64, device=start.device)
    rtol, atol = solver.tolerances(at_rest=at_rest)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The following arguments have no effect")  # scipy_solver gives min_step
            path: Any = odeint(field, start, times, rtol=rtol, atol=atol, method=name, options=options)
    except AssertionError as error:  # how torchdiffeq says that it cannot go on
        raise FlowError(
            f"torchdiffeq's {name} did not reach the end of T = {T:g} ({error}). Use a shorter horizon or larger "
            "tolerances, or raise max_steps"
        ) from error
    if len(path) < 2 or not bool(torch.isfinite(path[1]).all()):
        raise FlowError(
            f"torchdiffeq's {name} did not reach a finite state at T = {T:g}. Use a shorter horizon, or smaller steps "
            "or tolerances"
        )
    return path[1]
