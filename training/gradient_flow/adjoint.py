"""Exact meta-gradients by the adjoint of the reduced flow (method "adjoint").

The flow is a function s(T) = F(K, L0, w, T, lam) of small matrices: K = phi phi^T (M, M) and
L0 = phi W0^T (M, N). Everything of size d around it is plain matrix products, which autograd
differentiates; only F has a gradient of its own. With g = dLoss/ds(T) and
A_m = w_m (diag(p_m) - p_m p_m^T), the adjoint equation is

    a(T) = g,   da/dt = K u + lam a,   u_m = A_m a_m            (from T back to 0)
    dLoss/dL0 = int u dt,   dLoss/dK = -int u s^T dt,   dLoss/dlam = -int <a, s> dt
    dLoss/dw_m = int <a_m, p_m - y_m> dt,   dLoss/dT = <g, ds/dt(T)>

The forward trajectory is kept (M N numbers a step) and only `a` runs backward, a contraction; the
adjoint of the paper's section 2, which rebuilds W(t) backward in time, climbs the loss instead and
diverges. What is computed here is the exact derivative of the accepted Runge-Kutta steps, which is
the adjoint equation discretised consistently; the steps are kept inside the stability region of
the derivatives by `comln_serve.flow.solve_reduced`. All arithmetic is float64.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.autograd.function import once_differentiable

from comln_serve.flow import effective_horizon, solve_reduced
from comln_serve.flow.kernels import covariance_product, product, vector_field
from comln_serve.flow.solve import ReducedTrajectory
from comln_serve.flow.tableau import STAGES, A
from comln_serve.machine import usable_cpus

_SOLUTION_STAGES = STAGES - 1  # the last stage serves only the error estimate


class ReducedFlow(torch.autograd.Function):
    """s(T) for a batch of tasks, each with a step size of its own, in parallel over the cores."""

    @staticmethod
    def forward(
        ctx: Any,
        K: Tensor,
        L0: Tensor,
        Y: Tensor,
        w: Tensor,
        T: Tensor,
        lam: Tensor,
        rtol: float,
        atol: float,
        max_steps: int,
    ) -> Tensor:
        """K (B, M, M), L0 and Y (B, M, N), w (B, M), T and lam (B,), float64 -> s (B, M, N)."""
        arrays = [x.detach().cpu().numpy() for x in (K, L0, Y, w, T, lam)]

        def solve(k: Any, l0: Any, y: Any, weights: Any, horizon: Any, strength: Any) -> Any:
            return solve_reduced(
                k, l0, y, float(horizon), lam=float(strength), weights=weights,
                rtol=rtol, atol=atol, max_steps=max_steps,
            )  # fmt: skip

        ctx.arrays = arrays
        ctx.trajectories = list(_pool().map(solve, *arrays))
        ctx.device = K.device
        s = np.stack([trajectory.s.T for trajectory in ctx.trajectories])
        return torch.from_numpy(s).to(K.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The vector-Jacobian product of `forward`; a second derivative raises an error."""
        g = grads[0].detach().cpu().numpy()
        rows = list(_pool().map(_pull_back, ctx.trajectories, g, *ctx.arrays))
        dK, dL0, dw, dT, dlam = (
            torch.from_numpy(np.stack(parts)).to(ctx.device) for parts in zip(*rows, strict=True)
        )
        return dK, dL0, None, dw, dT, dlam, None, None, None


def _pull_back(
    trajectory: ReducedTrajectory, g: Any, K: Any, L0: Any, Y: Any, w: Any, T: Any, lam: Any
) -> tuple[Any, Any, Any, Any, Any]:
    """Derivatives of one task: dK (M, M), dL0 (M, N), dw (M,), dT (), dlam ()."""
    l0, y = np.ascontiguousarray(L0.T), np.ascontiguousarray(Y.T)
    dK, dL0, dw, dT, dlam = adjoint_sweep(
        np.ascontiguousarray(K), l0, y, np.ascontiguousarray(w), float(lam), trajectory.s,
        trajectory.states, trajectory.steps, np.ascontiguousarray(g.T),
    )  # fmt: skip
    if effective_horizon(float(T), float(lam)) < T:
        dT = 0.0  # the flow was at rest before T (and exp(-lam T) is below float64)
    return dK, dL0.T.copy(), dw, np.float64(dT), np.float64(dlam)


@njit(cache=True, nogil=True, error_model="numpy")
def adjoint_sweep(K, L0, Y, w, lam, s_end, states, steps, g):  # type: ignore[no-untyped-def]
    """Differentiate the accepted steps, last to first. Class-major, as in `kernels`.

    Args:
        K: (M, M); L0, Y: (N, M); w: (M,); lam: scalar.
        s_end: (N, M) state at T; states: (n, N, M) state at the start of each step;
        steps: (n,) step sizes; g: (N, M) derivative of the loss in s(T).

    Returns:
        dK (M, M), dL0 (N, M), dw (M,), dT, dlam.
    """
    n_classes, n_examples = L0.shape
    none = np.empty((0, 0))
    P = np.empty((STAGES, n_classes, n_examples))
    X = np.empty((STAGES, n_classes, n_examples))
    k = np.empty((STAGES, n_classes, n_examples))
    Xbar = np.empty((STAGES, n_classes, n_examples))
    kbar = np.empty((n_classes, n_examples))
    u = np.empty((n_classes, n_examples))
    table = np.empty((n_classes, n_examples))
    dK = np.zeros((n_examples, n_examples))
    dL0 = np.zeros((n_classes, n_examples))
    dw = np.zeros(n_examples)
    dlam = 0.0

    vector_field(K, none, L0, Y, w, lam, s_end, P[0], table, k[0])
    dT = np.sum(g * k[0])

    a = g.copy()
    for step in range(steps.shape[0] - 1, -1, -1):
        h = steps[step]
        for i in range(_SOLUTION_STAGES):
            for n in range(n_classes):
                for m in range(n_examples):
                    acc = 0.0
                    for q in range(i):
                        acc += A[i, q] * k[q, n, m]
                    X[i, n, m] = states[step, n, m] + h * acc
            vector_field(K, none, L0, Y, w, lam, X[i], P[i], table, k[i])
        for i in range(_SOLUTION_STAGES - 1, -1, -1):
            for n in range(n_classes):
                for m in range(n_examples):
                    acc = A[_SOLUTION_STAGES, i] * a[n, m]
                    for q in range(i + 1, _SOLUTION_STAGES):
                        acc += A[q, i] * Xbar[q, n, m]
                    kbar[n, m] = h * acc
            covariance_product(P[i], w, kbar, u)
            product(K, u, Xbar[i])
            for n in range(n_classes):
                for m in range(n_examples):
                    Xbar[i, n, m] = -Xbar[i, n, m] - lam * kbar[n, m]
                    dL0[n, m] += u[n, m]
                    dw[m] += kbar[n, m] * (P[i, n, m] - Y[n, m])
                    dlam -= kbar[n, m] * X[i, n, m]
                    for j in range(n_examples):
                        dK[m, j] -= u[n, m] * X[i, n, j]
        for i in range(_SOLUTION_STAGES):
            a += Xbar[i]
    return dK, dL0, dw, dT, dlam


@cache
def _pool() -> ThreadPoolExecutor:
    """One thread a usable core: the kernels release the interpreter lock."""
    return ThreadPoolExecutor(usable_cpus(), thread_name_prefix="flow")
