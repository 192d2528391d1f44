"""Exact meta-gradients by the adjoint of the reduced flow (method "adjoint").

The flow is a function s(T) = F(K, L0, w, T, lam) of small matrices: K = phi phi^T (M, M) and
L0 = phi W0^T (M, N). With g = dLoss/ds(T) and A_m = w_m (diag(p_m) - p_m p_m^T), the adjoint
equation is

    a(T) = g,   da/dt = K u + lam a,   u_m = A_m a_m            (from T back to 0)
    dLoss/dL0 = int u dt,   dLoss/dK = -int u s^T dt,   dLoss/dlam = -int <a, s> dt
    dLoss/dw_m = int <a_m, p_m - y_m> dt

The trajectory s(t) is kept and only `a` runs backward, a contraction; the adjoint of the paper's
section 2, which rebuilds W(t) backward in time, climbs the loss instead and diverges. What is
computed here is the exact derivative of the solver's own steps, which is the adjoint equation
discretised consistently; the steps are kept inside the stability region of the derivatives by
`comln_serve.flow.kernels.integrate`. All arithmetic is float64.

The projections of Algorithms 2 and 3 are integrals of the same kind: C = -dLoss/dL0 and
D = -(dLoss/dK + dLoss/dK^T), which is how they are returned.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false

import math

import numpy as np
from numba import njit

from comln_serve.flow.kernels import (
    add_combination,
    covariance_product,
    likeliest,
    product,
    weighted_residual,
    workspace,
)
from comln_serve.flow.problem import Array
from training.gradient_flow.steps import (
    Chunk,
    ReducedProblem,
    Solver,
    march,
    replay,
    stage_state,
)

# Steps that are kept whole: 128 of 5-way 5-shot are 1 MB. A flow that takes more keeps the first
# state of every earlier chunk and takes its steps again when the sweep arrives there. With Euler's
# n steps the chunks are sqrt(n) long, and as many.
_CHUNK = 128


class AdjointMethod:
    """s(T) of one task, ready to be differentiated.

    Attributes:
        last: the last steps taken, None when T = 0.
    """

    def __init__(self, problem: ReducedProblem, solver: Solver) -> None:
        self._problem, self._solver = problem, solver
        self._earlier: list[tuple[Array, Array]] = []  # first state and steps of each chunk
        self.last: Chunk | None = None
        size = _CHUNK
        if solver.step_size is not None:
            count = min(problem.T / solver.step_size, float(solver.max_steps))
            size = max(size, int(math.sqrt(count)))
        for chunk in march(problem, solver, size):
            if self.last is not None:
                self._earlier.append((self.last.states[0].copy(), self.last.steps))
            self.last = chunk

    def pull_back(self, g: Array) -> tuple[Array, Array, Array, float]:
        """Differentiate the loss along the steps, last to first.

        Args:
            g: (N, M) derivative of the loss in s(T).

        Returns:
            C (N, M), D (M, M), dLoss/dw (M,), dLoss/dlam.
        """
        n_classes, n_examples = g.shape
        a = g.copy()
        dK, dL0 = np.zeros((n_examples, n_examples)), np.zeros((n_classes, n_examples))
        dw, dlam = np.zeros(n_examples), np.zeros(1)

        problem, table = self._problem, self._solver.table

        def sweep(chunk: Chunk) -> None:
            adjoint_sweep(
                problem.K, problem.Y, problem.w, problem.lam, table, chunk.states, chunk.steps,
                chunk.P, a, dK, dL0, dw, dlam,
            )  # fmt: skip

        if self.last is not None:
            sweep(self.last)
        for start, steps in reversed(self._earlier):
            sweep(replay(problem, self._solver, start, steps))
        return -dL0, -(dK + dK.T), dw, float(dlam[0])


@njit(cache=True, nogil=True, error_model="numpy")
def adjoint_sweep(K, Y, w, lam, table, states, steps, P, a, dK, dL0, dw, dlam):  # type: ignore[no-untyped-def]
    """Differentiate steps, last to first. Class-major, as in `kernels`.

    Args:
        K: (M, M); Y: (N, M); w: (M,); lam: scalar. table: (S + 1, S) of the solver.
        states: (n, N, M); steps: (n,); P: (n, S, N, M); see `Chunk`.
        a: (N, M) derivative of the loss in the state after the last step; on return, in the state
            at the start of the first.
        dK (M, M), dL0 (N, M), dw (M,), dlam (1,): are added to.
    """
    n_steps, n_stages, n_classes, n_examples = P.shape
    shape = (n_stages, n_classes, n_examples)
    X, k, residual = np.empty(shape), np.empty(shape), np.empty(shape)
    u, Xbar = np.empty(shape), np.empty(shape)
    kbar = np.empty((n_classes, n_examples))
    ones = np.ones(max(n_examples, n_stages))
    top, work = likeliest(Y), workspace(n_classes, n_examples)
    for step in range(n_steps - 1, -1, -1):
        h = steps[step]
        for i in range(n_stages):
            stage_state(table, i, states[step], h, k, X[i])
            weighted_residual(P[step, i], Y, top, ones, residual[i], work)
            for n in range(n_classes):
                for m in range(n_examples):
                    k[i, n, m] = w[m] * residual[i, n, m] - lam * X[i, n, m]
        for i in range(n_stages - 1, -1, -1):
            for n in range(n_classes):
                for m in range(n_examples):
                    kbar[n, m] = h * table[n_stages, i] * a[n, m]
            add_combination(h, table[:n_stages, i], i + 1, Xbar, kbar)
            covariance_product(P[step, i], w, kbar, u[i], work)
            product(K, u[i], Xbar[i])
            for n in range(n_classes):
                for m in range(n_examples):
                    Xbar[i, n, m] = -Xbar[i, n, m] - lam * kbar[n, m]
                    dL0[n, m] += u[i, n, m]
                    dw[m] += kbar[n, m] * residual[i, n, m]
                    dlam[0] -= kbar[n, m] * X[i, n, m]
        subtract_outer(
            u.reshape(n_stages * n_classes, n_examples),
            X.reshape(n_stages * n_classes, n_examples),
            dK,
        )
        add_combination(1.0, ones[:n_stages], 0, Xbar, a)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def subtract_outer(U, X, out):  # type: ignore[no-untyped-def]
    """Subtract U^T X from `out` (M, M), for U and X (R, M): tiles of 2 rows of out by 4 of R."""
    n_rows, size = U.shape
    for m in range(0, size - size % 2, 2):
        r = 0
        while r + 4 <= n_rows:
            a, b, c, d = U[r, m], U[r + 1, m], U[r + 2, m], U[r + 3, m]
            a1, b1, c1, d1 = U[r, m + 1], U[r + 1, m + 1], U[r + 2, m + 1], U[r + 3, m + 1]
            for j in range(size):
                x, x1, x2, x3 = X[r, j], X[r + 1, j], X[r + 2, j], X[r + 3, j]
                out[m, j] -= (a * x + b * x1) + (c * x2 + d * x3)
                out[m + 1, j] -= (a1 * x + b1 * x1) + (c1 * x2 + d1 * x3)
            r += 4
        while r < n_rows:
            for j in range(size):
                out[m, j] -= U[r, m] * X[r, j]
                out[m + 1, j] -= U[r, m + 1] * X[r, j]
            r += 1
    for m in range(size - size % 2, size):
        for r in range(n_rows):
            for j in range(size):
                out[m, j] -= U[r, m] * X[r, j]
