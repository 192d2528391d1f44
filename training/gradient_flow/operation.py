"""`gradient_flow`: adaptation as one differentiable operation on torch tensors."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from comln_serve.flow.problem import Array
from training.config.flow import TORCHDIFFEQ, Method, SolverName, check_solver
from training.flow_steps import ReducedProblem, Solver
from training.gradient_flow import transfers
from training.gradient_flow.compiled import METHODS, CompiledBatch

if TYPE_CHECKING:
    from training.gradient_flow.odeint import OdeintBatch


def gradient_flow(
    phi: Tensor,
    W0: Tensor,
    Y: Tensor,
    T: Tensor | float,
    *,
    lam: Tensor | float = 0.0,
    weights: Tensor | None = None,
    psi: Tensor | None = None,
    method: Method = "adjoint",
    solver: SolverName = "dopri5",
    step_size: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 200_000,
) -> Tensor:
    """Adapt linear classifiers by gradient flow, differentiably: equation 8 and Algorithm 6.

    W(T) solves dW/dt = -grad L(W), W(0) = W0, with L the (weighted) mean cross-entropy of
    softmax(phi W^T) against Y plus lam/2 ||W - W0||^2_F. Batched over leading axes (tasks); every
    task is integrated with its own step size, in float64 whatever the dtype of the inputs.

    The compiled solvers run on the CPU's cores. With tensors on another device, forward and backward
    each need one transfer of small tables to the CPU and back (forward: M M + 3 M N and M N numbers
    per task). torchdiffeq's solvers run on the tensors' own device, the tasks of a batch together,
    with the same steps for all; the tables pass through the CPU once, which checks them.

    Args:
        phi: (..., M, d) support embeddings, floating point, on any device.
        W0: (N, d) shared by the tasks, or (..., N, d).
        Y: (..., M, N) one-hot or soft labels, any dtype; no gradient.
        T: horizon >= 0 in flow time; a scalar, or one per task (...,).
        lam: regularisation >= 0; a scalar, or one per task.
        weights: (..., M) weight >= 0 of each example, default 1/M. A row with weight 0 is padding.
        psi: (..., M, d) = phi P of a flow dW/dt = -grad L(W) P with a symmetric positive semi-definite P; also
            differentiable. Default phi, with P the identity. See `training.gradient_flow.metric`.
        method: "adjoint", the adjoint of the reduced flow: fast, and its memory is little more than s at each step.
            "forward", the paper's (s, B, z) system: memory M N (M N + M^2 / 2) numbers for any number of steps.
        solver: "dopri5", Dormand-Prince with error control. "euler", explicit steps of
            `step_size`: gradient descent, whose exact meta-gradient is ANIL's. With method "forward"
            also "torchdiffeq.NAME", any of torchdiffeq's solvers (`training.gradient_flow.odeint`).
        step_size: of Euler and of torchdiffeq's solvers of equal steps, in flow time. The last step is
            shorter if T is not a multiple of it. (torchdiffeq, tasks with different T: that of the
            longest T; the others take as many, shorter steps.)
        rtol, atol: tolerance of the local error of a solver that chooses its steps; atol is measured
            on support logits. Default 2e-6, and 1e-8 for tasks with lam > 0 or soft labels, whose flow
            comes to rest (docs/derivation.md explains this).
        max_steps: largest number of attempted steps per task (scipy_solver knows no such limit).

    Returns:
        (..., N, d) W(T), dtype and device of phi. Differentiable once in phi, W0, T, lam and
        weights (Propositions 2, 3 and 4); a second derivative raises an error. With the
        compiled Euler dT is the derivative in the last step's length; else the flow's rate at T.

    Raises:
        ValueError: invalid shapes or values.
        comln_serve.flow.FlowError: the solver could not reach T within the tolerance and max_steps.
    """
    if method not in METHODS:
        raise ValueError(f'method must be "adjoint" or "forward", got {method!r}')
    how = Solver(solver, rtol, atol, max_steps, step_size)
    check_solver(method, solver, step_size)
    _check_shapes(phi, psi, W0, T, lam, weights, Y)
    return GradientFlow.apply(phi, psi, W0, T, lam, weights, Y, method if torch.is_grad_enabled() else None, how)


def _check_shapes(
    phi: Tensor,
    psi: Tensor | None,
    W0: Tensor,
    T: Tensor | float,
    lam: Tensor | float,
    weights: Tensor | None,
    Y: Tensor,
) -> None:
    """Refuse, with a ValueError, tensors other than those that `gradient_flow` documents."""
    if not phi.is_floating_point():
        raise ValueError(f"phi must be floating point, got {phi.dtype}")
    if phi.ndim < 2 or W0.ndim < 2 or Y.ndim != phi.ndim:
        raise ValueError(
            "need phi (..., M, d), W0 (N, d) or (..., N, d) and Y (..., M, N); got "
            f"{tuple(phi.shape)}, {tuple(W0.shape)} and {tuple(Y.shape)}"
        )
    *batch, M, d = phi.shape
    N = Y.shape[-1]
    if list(Y.shape) != [*batch, M, N] or W0.shape[-2:] != (N, d):
        raise ValueError(
            f"phi {tuple(phi.shape)} and Y {tuple(Y.shape)} need W0 (..., {N}, {d}) and Y "
            f"{(*batch, M, N)}; got W0 {tuple(W0.shape)}"
        )
    for name, tensor in (("phi", phi), ("W0", W0)):
        if tensor.numel() == 0:
            raise ValueError(f"{name} {tuple(tensor.shape)} is empty")

    shapes = (("W0", W0, (N, d)), ("T", T, ()), ("lam", lam, ()), ("weights", weights, (M,)))
    for name, value, shape in shapes:
        whole = (*batch, *shape)
        if isinstance(value, Tensor) and not _broadcasts(value.shape, whole):
            raise ValueError(f"{name} is {tuple(value.shape)}, which does not broadcast to {whole}")
    if psi is not None and psi.shape != phi.shape:
        raise ValueError(f"psi is {tuple(psi.shape)}; it needs the shape of phi {tuple(phi.shape)}")


class GradientFlow(torch.autograd.Function):
    """W(T) = W0 - s(T)^T psi and its derivatives, for a batch of B tasks in float64.

    All computation with tensors of size d is matrix products here, on the tensors' device; the methods work on s only.
    """

    @staticmethod
    def forward(
        ctx: Any,
        phi: Tensor,
        psi: Tensor | None,
        W0: Tensor,
        T: Tensor | float,
        lam: Tensor | float,
        w: Tensor | None,
        Y: Tensor,
        method: Method | None,
        solver: Solver,
    ) -> Tensor:
        """Shapes as in `gradient_flow`; `method` None: the value is wanted and no derivative."""
        *batch, M, d = phi.shape
        N = Y.shape[-1]

        def per_task(value: Tensor | float, *shape: int) -> Tensor | Array:
            if not isinstance(value, Tensor) or (value.ndim == 0 and value.device.type == "cpu"):
                return np.full((math.prod(batch), *shape), float(value))  # needs no transfer
            return value.to(phi.device, torch.float64).expand((*batch, *shape)).reshape(-1, *shape)

        rows = torch.empty((*batch, N + M, d), dtype=torch.float64, device=phi.device)
        rows[..., :N, :] = W0
        rows[..., N:, :] = phi if psi is None else psi
        rows = rows.view(-1, N + M, d)
        features = rows[:, N:]
        if psi is not None:
            features = phi.to(torch.float64).reshape(-1, M, d)
        tables, labels, weights, horizons, strengths = transfers.to_cpu(
            torch.bmm(rows, features.mT),  # L0 above K
            per_task(Y, M, N),
            per_task(1.0 / M if w is None else w, M),
            per_task(T),
            per_task(lam),
        )
        labels = np.ascontiguousarray(labels.swapaxes(1, 2))
        try:
            problems = [
                ReducedProblem(K_and_L0[N:], K_and_L0[:N], *rest)
                for K_and_L0, *rest in zip(tables, labels, weights, horizons.tolist(), strengths.tolist(), strict=True)
            ]
            ctx.solved = _solve(problems, solver, method if any(ctx.needs_input_grad) else None, phi.device)
        except ValueError:
            # The tables were checked; if the cause is in phi or W0, name that tensor instead.
            for name, tensor in (("phi", phi), ("W0", W0)):
                if not bool(torch.isfinite(tensor).all()):
                    raise ValueError(f"{name} {tuple(tensor.shape)} holds NaN or infinity") from None
            raise
        s = ctx.solved.state
        ctx.save_for_backward(rows, features, s)
        ctx.batch = batch
        W = torch.baddbmm(rows[:, :N], s, rows[:, N:], alpha=-1.0)
        return W.view(*batch, N, d).to(phi.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """V = dLoss/dW(T) (..., N, d) -> the projections of Algorithms 3 and 4 and Proposition 4.

        With C and D of the method,

            dLoss/dW0    = V - C^T phi
            dLoss/dphi_m = -(s_m^T V + C_m W0 + D_m phi)
            dLoss/dT     = -<V, grad L(W(T))> = -<V phi^T, ds/dt(T)>

        With psi = phi P the Gram matrix is psi phi^T: half of D phi becomes D psi, and s_m^T V and
        the other half are the derivative in psi.

        All are returned in float64 with all batch axes; autograd converts them to the input's dtype
        and sums over the axes along which the input was broadcast.
        """
        rows, phi, s = ctx.saved_tensors
        B, N, M = s.shape
        W0, psi = rows[:, :N], rows[:, N:]
        V = grads[0].to(torch.float64).reshape(W0.shape)
        wants_phi, wants_psi, wants_W0, wants_T, wants_lam, wants_w, *_ = ctx.needs_input_grad
        separate = phi.data_ptr() != psi.data_ptr()
        size = (N + M) * M
        # For each task -C above -D, then dLoss/dweights, dLoss/dT and dLoss/dlam, given dLoss/ds(T).
        found = ctx.solved.pull_back(-torch.bmm(V, psi.mT), weights=wants_w)
        projections = found[:, :size].view(B, N + M, M)
        dphi = dpsi = dW0 = dT = dlam = dw = None
        if separate:
            projections[:, N:] *= 0.5
        if wants_phi:
            dphi = torch.bmm(projections.mT, rows)
            if not separate:
                dphi.baddbmm_(s.mT, V, alpha=-1.0)
            dphi = dphi.view(*ctx.batch, *dphi.shape[1:])
        if wants_psi:
            dpsi = torch.bmm(projections[:, N:], phi).baddbmm_(s.mT, V, alpha=-1.0)
            dpsi = dpsi.view(*ctx.batch, *dpsi.shape[1:])
        if wants_W0:
            dW0 = torch.baddbmm(V, projections[:, :N], phi)
            dW0 = dW0.view(*ctx.batch, *dW0.shape[1:])
        if wants_T:
            dT = found[:, -2].view(ctx.batch)
        if wants_lam:
            dlam = found[:, -1].view(ctx.batch)
        if wants_w:
            dw = found[:, size:-2].view(*ctx.batch, M)
        return dphi, dpsi, dW0, dT, dlam, dw, None, None, None


def _solve(
    problems: list[ReducedProblem], solver: Solver, method: Method | None, device: torch.device
) -> "CompiledBatch | OdeintBatch":
    """Solve a batch, ready to `pull_back` derivatives if there is a method."""
    if not solver.name.startswith(TORCHDIFFEQ):
        return CompiledBatch(problems, solver, method, device)
    from training.gradient_flow.odeint import OdeintBatch  # noqa: PLC0415 (imports torchdiffeq)

    return OdeintBatch(problems, solver, tangents=method is not None, device=device)


def _broadcasts(shape: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether a tensor of `shape` expands to `whole`."""
    last = zip(reversed(shape), reversed(whole), strict=False)
    return shape == whole or (len(shape) <= len(whole) and all(a in {1, b} for a, b in last))
