"""Adaptation as a gradient flow: the public, checked entry to the compiled integrator.

Symbols are those of Deleu et al., "Continuous-Time Meta-Learning with Forward Mode
Differentiation" (ICLR 2022): M support examples, N classes, d features;

    phi (M, d)  support embeddings          Y (M, N)   labels, one-hot or soft
    W   (N, d)  linear classifier           T          horizon, in units of flow time
    lam         weight of lam/2 ||W - W0||^2_F in the support loss

The flow is dW/dt = -grad L(W), W(0) = W0, with L the weighted mean cross-entropy (equation 8). With
M <= 2 d it is integrated in s (M, N), where a step costs less: W(t) = W0 - s(t)^T phi (Proposition 1,
Algorithm 6). With more examples, W0 - W(t) (N, d) is integrated.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from comln_serve.flow.integration import Integration
from comln_serve.flow.metric import symmetric, whitened
from comln_serve.flow.problem import (
    Array,
    as_float64,
    check_problem,
    check_tolerances,
    reduced_is_cheaper,
    uniform_weights,
)


@dataclass(frozen=True)
class FlowSolution:
    """An adapted classifier.

    Attributes:
        W: (N, d) float64, W(T).
        accepted, rejected: numbers of the integrator's steps.
    """

    W: Array
    accepted: int
    rejected: int


def solve_flow(
    phi: ArrayLike,
    W0: ArrayLike,
    Y: ArrayLike,
    T: float,
    *,
    lam: float = 0.0,
    weights: ArrayLike | None = None,
    whitening: float = 0.0,
    rtol: float = 1e-6,
    atol: float = 1e-6,
    max_steps: int = 200_000,
    cancel: NDArray[np.bool_] | None = None,
) -> FlowSolution:
    """Adapt a linear classifier: follow the gradient flow of the support loss from W0 for time T.

    Args:
        phi: (M, d) support embeddings, any real dtype; converted to float64.
        W0: (N, d) classifier at time 0, N >= 2.
        Y: (M, N) labels; rows are probability vectors (one-hot in the usual case).
        T: horizon, finite and >= 0, in flow time (gradient steps x learning rate).
        lam: strength of lam/2 ||W - W0||^2, >= 0.
        weights: (M,) weight of each example in the loss, >= 0; default 1/M each. Weights
            1/(N n_c), n_c the examples of the class, balance unequal classes; 0 ignores a row.
        whitening: r >= 0, the strength of the metric in which the flow descends; 0: the paper's
            flow. See `comln_serve.flow.metric`.
        rtol, atol: tolerance of the local error; atol is measured on the support logits.
        max_steps: most tried steps.
        cancel: (1,) array; another thread sets it to True to end the solve with `FlowError`.

    Raises:
        ValueError: an argument's shape, sign or values are invalid; the message names it.
        FlowError: the tolerance could not be met, or the solve was cancelled.
    """
    phi, W0, Y = as_float64("phi", phi, 2), as_float64("W0", W0, 2), as_float64("Y", Y, 2)
    M, d = phi.shape
    N = W0.shape[0]
    if W0.shape[1] != d:
        raise ValueError(f"W0 is {W0.shape}, but phi is {phi.shape}: both need the same width d")
    if Y.shape != (M, N):
        raise ValueError(f"Y is {Y.shape}; phi {phi.shape} and W0 {W0.shape} need ({M}, {N})")
    w = uniform_weights(M) if weights is None else as_float64("weights", weights, 1)
    T, lam, whitening = float(T), float(lam), float(whitening)
    if not 0.0 <= whitening < math.inf:
        raise ValueError(f"whitening must be finite and >= 0, got {whitening}")
    reduced = reduced_is_cheaper(M, d)
    with np.errstate(over="ignore", invalid="ignore"):
        logits = np.ascontiguousarray(W0 @ phi.T)
        psi = whitened(phi, w, whitening)
        features = symmetric(psi @ phi.T) if reduced else phi
    labels = np.ascontiguousarray(Y.T)
    check_problem(features, logits, labels, T, lam, w)
    check_tolerances(rtol, atol)
    flow = Integration(
        features,
        np.empty((0, 0)) if reduced else np.ascontiguousarray(psi.T),
        logits,
        labels,
        w,
        T,
        lam,
        rtol=rtol,
        atol=atol,
        max_steps=max_steps,
        limit_steps=False,
        cancel=cancel,
    )
    flow.advance()
    W = W0 - (flow.X @ psi if reduced else flow.X)
    return FlowSolution(W, flow.accepted, flow.rejected)
