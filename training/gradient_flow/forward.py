"""Exact meta-gradients by forward sensitivity, as in the paper (method "forward").

Besides s (M, N) the system has B (M, M, N, N) and z (M, M, M, N) (Propositions 2 and 3), all from 0:

    ds[i]/dt     = w_i (p_i - y_i) - lam s_i
    dB[i,j]/dt   = 1(i=j) A_i - lam B[i,j] - A_i sum_m K_im B[m,j]
    dz[i,j,m]/dt = -lam z[i,j,m] - A_i (1(i=j) s_m + 1(i=m) s_j + sum_k K_ik z[k,j,m])

with A_i = w_i (diag(p_i) - p_i p_i^T). The paper prints lam z inside A_i(...); differentiating the flow puts it outside
(docs/derivation.md). Once V = dLoss/dW(T) is known, the projections of Algorithms 3 and 4 need no further integration:

    C[j] = sum_i phi_i^T V^T B[i,j]          D[m,j] = sum_i z[i,j,m] . (V phi_i)

Every pair (j, class) of B and (j, m) of z is a *tangent*: the derivative of all of s in one number,
L0[j, class] or K[j, m] = K[m, j]. Each tangent satisfies its own linear equation along the
trajectory of s, independent of the other tangents. Therefore

- by the symmetry z[i,j,m] = z[i,m,j] only the tangents with j <= m are needed;
- the tangents are integrated in blocks that fit in a core's cache, on all cores;
- the memory is one copy of B and z for any number of steps, since the stages of a step are stored
  for one block at a time.

The derivatives in lam and the weights, ds/dlam and ds/dw, are M + 1 further tangents. Each of their
steps is the derivative of the solver's own step, whose length keeps the tangents stable
(`comln_serve.flow.kernels.integrate`). All arithmetic is float64.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false

import numpy as np
from numba import njit
from numpy.typing import NDArray

from comln_serve.flow.kernels import combine, likeliest, product, weighted_residual, workspace
from comln_serve.flow.problem import Array
from training.flow_steps import Chunk, Flow, ReducedProblem, Solver, march
from training.gradient_flow.workers import thread_map

_CHUNK = 32  # steps whose stages are stored at a time: 10 MB for 20-way 5-shot
_CACHE = 2**17  # numbers in a block of tangents with its stages: 1 MB
_SHARES = 8  # pieces of work that the cores share

_LOGIT, _GRAM, _LAMBDA, _WEIGHT = range(4)


class ForwardMethod(Flow):
    """s(T) of one task with its tangents."""

    def __init__(self, problem: ReducedProblem, solver: Solver) -> None:
        super().__init__(problem, solver)
        n_classes, n_examples = problem.L0.shape
        self._tangents = _tangents(n_classes, n_examples)
        self._columns = np.zeros((len(self._tangents), n_classes, n_examples))
        for chunk in march(problem, solver, _CHUNK):
            self._advance(chunk)
            self.last = chunk

    def _advance(self, chunk: Chunk) -> None:
        """Advance the tangents over the steps of a chunk."""
        problem, table = self.problem, self.solver.table
        residual, top = _stage_tables(problem.Y, chunk.P)

        def advance(first: int, end: int) -> None:
            advance_tangents(
                problem.K,
                problem.w,
                problem.lam,
                table,
                chunk.steps,
                chunk.X,
                chunk.P,
                residual,
                top,
                self._tangents[first:end],
                self._columns[first:end],
            )

        bounds = np.linspace(0, len(self._columns), _SHARES + 1).astype(int)
        thread_map(advance, bounds[:-1], bounds[1:])

    def pull_back(self, g: Array, *, weights: bool = True) -> tuple[Array, Array, Array, float]:
        """Project the tangents onto the derivative of the loss.

        Args:
            g: (N, M) derivative of the loss in s(T), -V phi^T.
            weights: whether dLoss/dw is wanted.

        Returns:
            dLoss/dL0 (N, M), dLoss/dK + dLoss/dK^T (M, M), dLoss/dw (M,) or empty, dLoss/dlam.
        """
        N, M = g.shape
        derivatives = self._columns.reshape(-1, N * M) @ g.ravel()
        dL0, dz, dlam, dw = np.split(derivatives, [M * N, M * N + M * (M + 1) // 2, -M])
        dK = np.empty((M, M))
        dK[np.triu_indices(M)] = dz
        dK.T[np.triu_indices(M)] = dz
        return dL0.reshape(M, N).T, dK, dw if weights else dw[:0], float(dlam[0])


def _tangents(n_classes: int, n_examples: int) -> NDArray[np.int64]:
    """(C, 3) int64: kind of each tangent and its two indices."""
    examples = np.arange(n_examples)
    first, second = np.triu_indices(n_examples)
    blocks = [
        (_LOGIT, np.repeat(examples, n_classes), np.tile(np.arange(n_classes), n_examples)),
        (_GRAM, first, second),
        (_LAMBDA, np.zeros(1), np.zeros(1)),
        (_WEIGHT, examples, examples),
    ]
    rows = [np.stack([np.full(len(a), kind), a, b], axis=1) for kind, a, b in blocks]
    return np.concatenate(rows).astype(np.int64)


@njit(cache=True, nogil=True, error_model="numpy")
def _stage_tables(Y, P):  # type: ignore[no-untyped-def]
    """Residuals p - y (n, S, N, M) and likeliest classes (n, S, M) at the stages."""
    n_steps, n_stages, n_classes, n_examples = P.shape
    residual, top = np.empty_like(P), np.empty((n_steps, n_stages, n_examples), dtype=np.int64)
    ones, labels, work = np.ones(n_examples), likeliest(Y), workspace(n_classes, n_examples)
    for step in range(n_steps):
        for i in range(n_stages):
            weighted_residual(P[step, i], Y, labels, ones, residual[step, i], work)
            top[step, i] = likeliest(P[step, i])
    return residual, top


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def advance_tangents(K, w, lam, table, steps, X, P, residual, top, tangents, columns):  # type: ignore[no-untyped-def]
    """Advance tangents over steps, in blocks that fit in the cache.

    Args:
        K: (M, M); w: (M,); lam: scalar; table: (S + 1, S); steps: (n, S).
        X, P: (n, S, N, M), see `Chunk`. residual, top: of the stages, see `_stage_tables`.
        tangents: (C, 3) kinds and indices.
        columns: (C, N, M) values of the tangents, advanced in place.
    """
    n_columns, n_classes, n_examples = columns.shape
    n_stages = table.shape[1]
    size = n_classes * n_examples
    width = max(1, _CACHE // (size * (n_stages + 3)))
    origin, mean = np.empty(n_examples), np.empty(n_examples)
    for begin in range(0, n_columns, width):
        end = min(begin + width, n_columns)
        count = end - begin
        rows = count * n_classes
        block = columns[begin:end]
        x, Kx = np.empty_like(block), np.empty_like(block)
        k = np.empty((n_stages, count, n_classes, n_examples))
        flat, flat_x = block.reshape(count * size), x.reshape(count * size)
        rates = k.reshape((n_stages, count * size))
        for step in range(steps.shape[0]):
            for i in range(n_stages):
                combine(1.0, table[i], 0, i, rates, flat, flat_x)
                product(K, x.reshape((rows, n_examples)), Kx.reshape((rows, n_examples)))
                s, p = X[step, i], P[step, i]
                for c in range(count):
                    kind, first, second = tangents[begin + c]
                    change, out = Kx[c], k[i, c]
                    # minus the change of the logits: K x, and the change of the tangent's own number
                    if kind == _LOGIT:
                        change[second, first] -= 1.0
                    elif kind == _GRAM:
                        for n in range(n_classes):
                            change[n, first] += s[n, second]
                            change[n, second] += s[n, first]
                    # -A change - lam x; see `kernels.covariance_product` for the origin
                    for m in range(n_examples):
                        origin[m] = change[top[step, i, m], m]
                        mean[m] = 0.0
                    for n in range(n_classes):
                        for m in range(n_examples):
                            change[n, m] -= origin[m]
                            mean[m] += p[n, m] * change[n, m]
                    for n in range(n_classes):
                        for m in range(n_examples):
                            out[n, m] = w[m] * p[n, m] * (mean[m] - change[n, m]) - lam * x[c, n, m]
                    if kind == _LAMBDA:
                        for n in range(n_classes):
                            for m in range(n_examples):
                                out[n, m] -= s[n, m]
                    elif kind == _WEIGHT:
                        for n in range(n_classes):
                            out[n, first] += residual[step, i, n, first]
                rates[i] *= steps[step, i]
            combine(1.0, table[n_stages], 0, n_stages, rates, flat, flat)
