"""Exact meta-gradients by the adjoint of the reduced flow (method "adjoint").

The flow is a function s(T) = F(K, L0, w, T, lam) of small matrices: K = phi phi^T (M, M) and L0 = phi W0^T (M, N). With
g = dLoss/ds(T) and A_m = w_m (diag(p_m) - p_m p_m^T), the adjoint equation is

    a(T) = g,   da/dt = K u + lam a,   u_m = A_m a_m            (from T back to 0)
    dLoss/dL0 = int u dt,   dLoss/dK = -int u s^T dt,   dLoss/dlam = -int <a, s> dt
    dLoss/dw_m = int <a_m, p_m - y_m> dt

The trajectory s(t) is stored and only `a` is integrated backward, where it contracts. The adjoint that the paper's
Section 3.2 rules out also recomputes W(t) backward in time, which ascends the loss and diverges (Figure 2). This module
computes the exact derivative of the solver's own steps, a consistent discretisation of the adjoint equation;
`comln_serve.flow.kernels.integrate` keeps the steps inside the stability region of the derivatives. All arithmetic is
float64.

The projections of Algorithms 3 and 4 are integrals of the same kind: C = -dLoss/dL0 and D = -(dLoss/dK + dLoss/dK^T).
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false

import math

import numpy as np
from numba import njit

from comln_serve.flow.kernels import combine, covariance_product, likeliest, product, weighted_residual, workspace
from comln_serve.flow.problem import Array
from training.flow_steps import Chunk, Flow, ReducedProblem, Solver, march, replay

# Steps that are stored with their stages: 128 of 5-way 5-shot take 1.5 MB. Of a longer flow only the
# first state of every earlier chunk is stored, and its steps are repeated in the backward sweep.
# Euler's n steps are divided into sqrt(n) chunks of sqrt(n) steps.
_CHUNK = 128

_GROUP_ROWS = 512  # rows of u and X per matrix product


class AdjointMethod(Flow):
    """s(T) of one task, with the steps that its derivative needs."""

    def __init__(self, problem: ReducedProblem, solver: Solver) -> None:
        super().__init__(problem, solver)
        self._earlier: list[tuple[Array, Array]] = []  # first state and steps of each chunk
        size = _CHUNK
        if solver.step_size is not None:
            count = min(problem.T / solver.step_size, float(solver.max_steps))
            size = max(size, int(math.sqrt(count)))
        for chunk in march(problem, solver, size):
            if self.last is not None:
                self._earlier.append((self.last.states[0].copy(), self.last.steps))
            self.last = chunk

    def pull_back(self, g: Array, *, weights: bool = True) -> tuple[Array, Array, Array, float]:
        """Differentiate the loss through the steps, from the last to the first.

        Args:
            g: (N, M) derivative of the loss in s(T).
            weights: whether dLoss/dw is wanted.

        Returns:
            dLoss/dL0 (N, M), dLoss/dK + dLoss/dK^T (M, M), dLoss/dw (M,) or empty, dLoss/dlam.
        """
        n_classes, n_examples = g.shape
        a = g.copy()
        dK, dL0 = np.zeros((n_examples, n_examples)), np.zeros((n_classes, n_examples))
        dw, dlam = np.zeros(n_examples if weights else 0), np.zeros(1)

        problem, table = self.problem, self.solver.table

        def sweep(chunk: Chunk) -> None:
            adjoint_sweep(
                problem.K, problem.Y, problem.w, problem.lam, table, chunk.steps, chunk.X, chunk.P, a, dK, dL0, dw, dlam
            )

        if self.last is not None:
            sweep(self.last)
        for start, steps in reversed(self._earlier):
            sweep(replay(problem, self.solver, start, steps))
        return dL0, dK + dK.T, dw, float(dlam[0])


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def adjoint_sweep(K, Y, w, lam, table, steps, X, P, a, dK, dL0, dw, dlam):  # type: ignore[no-untyped-def]
    """Differentiate steps, from the last to the first. Class-major, as in `kernels`.

    Args:
        K: (M, M); Y: (N, M); w: (M,); lam: scalar. table: (S + 1, S) of the solver.
        steps: (n, S); X, P: (n, S, N, M); see `Chunk`.
        a: (N, M) derivative of the loss in the state after the last step; on return, in the state
            at the start of the first.
        dK (M, M), dL0 (N, M), dw (M,), dlam (1,): the derivatives are added to them; an empty dw is skipped.
    """
    n_steps, n_stages, n_classes, n_examples = P.shape
    size, rows = n_classes * n_examples, n_stages * n_classes
    u = np.empty((n_stages, n_classes, n_examples))
    # Derivatives in the state at each stage, and last in the state after the step: the last row of the
    # table gives that state as the other rows give the stages.
    Xbar = np.empty((n_stages + 1, n_classes, n_examples))
    Xbar[n_stages] = a
    kbar, residual = np.empty((n_classes, n_examples)), np.empty((n_classes, n_examples))
    flat_u, flat_Xbar = u.reshape((n_stages, size)), Xbar.reshape((n_stages + 1, size))
    flat_a, flat_kbar, flat_dL0 = flat_Xbar[n_stages], kbar.reshape(size), dL0.reshape(size)
    columns = np.ascontiguousarray(table.T)
    ones, zero = np.ones(max(n_examples, n_stages)), np.zeros(size)
    top, work = likeliest(Y), workspace(n_classes, n_examples)

    # dK is the product of u^T and X over all steps, computed for groups of steps of equal size that
    # fit in the cache.
    group = max(1, _GROUP_ROWS // rows)
    group = -(-n_steps // -(-n_steps // group))
    U_T, X_T = np.zeros((n_examples, group * rows)), np.zeros((n_examples, group * rows))
    change = np.empty((n_examples, n_examples))
    filled = 0
    for step in range(n_steps - 1, -1, -1):
        for i in range(n_stages - 1, -1, -1):
            x, p = X[step, i], P[step, i]
            combine(steps[step, i], columns[i], i + 1, n_stages + 1, flat_Xbar, zero, flat_kbar)
            covariance_product(p, w, kbar, u[i], work)
            product(K, u[i], Xbar[i])
            along_x = 0.0
            for n in range(n_classes):
                for m in range(n_examples):
                    along_x += kbar[n, m] * x[n, m]
                    Xbar[i, n, m] = -Xbar[i, n, m] - lam * kbar[n, m]
            dlam[0] -= along_x
            if dw.size:
                weighted_residual(p, Y, top, ones, residual, work)
                for n in range(n_classes):
                    for m in range(n_examples):
                        dw[m] += kbar[n, m] * residual[n, m]
        combine(1.0, ones, 0, n_stages, flat_u, flat_dL0, flat_dL0)
        combine(1.0, ones, 0, n_stages, flat_Xbar, flat_a, flat_a)
        transpose(u.reshape((rows, n_examples)), U_T[:, filled : filled + rows])
        transpose(X[step].reshape((rows, n_examples)), X_T[:, filled : filled + rows])
        filled += rows
        if filled == U_T.shape[1] or step == 0:
            U_T[:, filled:] = 0.0
            product(X_T, U_T, change)
            dK -= change
            filled = 0
    a[:] = Xbar[n_stages]


@njit(cache=True, nogil=True, error_model="numpy")
def transpose(table, out):  # type: ignore[no-untyped-def]
    """out (J, I) = table^T (I, J)."""
    n_rows, n_columns = table.shape
    for j in range(n_columns):
        for i in range(n_rows):
            out[j, i] = table[i, j]
