"""Adaptation as a gradient flow: the public, checked entry to the compiled integrator.

Symbols are those of Deleu et al., "Continuous-Time Meta-Learning with Forward Mode
Differentiation" (ICLR 2022): M support examples, N classes, d features;

    phi (M, d)  support embeddings          Y (M, N)   labels, one-hot or soft
    W   (N, d)  linear classifier           T          horizon, in units of flow time
    lam         weight of lam/2 ||W - W0||^2_F in the support loss

The flow dW/dt = -grad L(W), W(0) = W0, with L the weighted mean cross-entropy (equation 4), is
never integrated in W when W is the larger object: W(t) = W0 - s(t)^T phi (Proposition 1) and only
s (M, N) moves (Algorithm 4). With more examples than features it is the other way round, and
W0 - W(t) (N, d) is integrated. `FlowSolution.formulation` says which one was used.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from comln_serve.flow import kernels

Array = NDArray[np.float64]

DEFAULT_RTOL = 1e-6
DEFAULT_ATOL = 1e-6
DEFAULT_MAX_STEPS = 200_000
MIN_TOLERANCE = 1e-12

# With lam > 0 the flow contracts at rate lam: after 60 / lam nothing moves any more in float64
# (exp(-60) is 9e-27), neither the state nor its derivatives, so no later time is integrated.
_REGULARISED_TIMES = 60.0


class FlowError(ArithmeticError):
    """The flow could not be solved to its tolerance; the message says what to change."""


@dataclass(frozen=True)
class FlowSolution:
    """An adapted classifier.

    Attributes:
        W: (N, d) float64, W(T).
        formulation: "reduced" when s (M, N) was integrated, "weights" when W (N, d) was.
        accepted, rejected: steps of the integrator.
    """

    W: Array
    formulation: Literal["reduced", "weights"]
    accepted: int
    rejected: int


@dataclass(frozen=True)
class ReducedTrajectory:
    """The reduced flow with its accepted steps, class-major (see `kernels`).

    Attributes:
        s: (N, M), transpose of s(T).
        states: (n, N, M), state at the start of each accepted step.
        steps: (n,), length of each accepted step, in flow time.
        rejected: number of rejected steps.
    """

    s: Array
    states: Array
    steps: Array
    rejected: int


def solve_flow(
    phi: ArrayLike,
    W0: ArrayLike,
    Y: ArrayLike,
    T: float,
    *,
    lam: float = 0.0,
    weights: ArrayLike | None = None,
    rtol: float = DEFAULT_RTOL,
    atol: float = DEFAULT_ATOL,
    max_steps: int = DEFAULT_MAX_STEPS,
    cancel: NDArray[np.bool_] | None = None,
) -> FlowSolution:
    """Adapt a linear classifier: follow the gradient flow of the support loss from W0 for time T.

    Args:
        phi: (M, d) support embeddings, any real dtype; computed with in float64.
        W0: (N, d) classifier at time 0, N >= 2.
        Y: (M, N) labels; rows are probability vectors (one-hot in the usual case).
        T: horizon, finite and >= 0, in flow time (gradient steps x learning rate).
        lam: strength of lam/2 ||W - W0||^2, >= 0.
        weights: (M,) weight of each example in the loss, >= 0; default 1/M each. Weights
            1/(N n_c), n_c the examples of the class, balance unequal classes; 0 ignores a row.
        rtol, atol: tolerance of the local error; atol is measured on the support logits.
        max_steps: tried steps allowed.
        cancel: (1,) array; another thread that sets it to True ends the solve with `FlowError`.

    Raises:
        ValueError: shapes, signs or values that make no problem; the message names them.
        FlowError: the tolerance could not be met, or the solve was cancelled.
    """
    phi, W0, Y = _as_float64("phi", phi, 2), _as_float64("W0", W0, 2), _as_float64("Y", Y, 2)
    M, d = phi.shape
    N = W0.shape[0]
    if W0.shape[1] != d:
        raise ValueError(f"W0 is {W0.shape}, but phi is {phi.shape}: both need the same width d")
    if Y.shape != (M, N):
        raise ValueError(f"Y is {Y.shape}; phi {phi.shape} and W0 {W0.shape} need ({M}, {N})")
    with np.errstate(over="ignore", invalid="ignore"):
        logits = np.ascontiguousarray(W0 @ phi.T)
    if d < M:
        features, back = np.ascontiguousarray(phi), np.ascontiguousarray(phi.T)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            features, back = np.ascontiguousarray(phi @ phi.T), np.empty((0, 0))
    X, accepted, rejected, _, _ = _integrate(
        features, back, logits, Y, T, lam, weights, rtol, atol, max_steps,
        differentiable=False, cancel=cancel,
    )  # fmt: skip
    if d < M:
        return FlowSolution(W0 - X, "weights", accepted, rejected)
    return FlowSolution(W0 - X @ phi, "reduced", accepted, rejected)


def solve_reduced(
    K: ArrayLike,
    L0: ArrayLike,
    Y: ArrayLike,
    T: float,
    *,
    lam: float = 0.0,
    weights: ArrayLike | None = None,
    rtol: float = DEFAULT_RTOL,
    atol: float = DEFAULT_ATOL,
    max_steps: int = DEFAULT_MAX_STEPS,
) -> ReducedTrajectory:
    """Solve Algorithm 4 and keep its accepted steps, each short enough to be differentiated.

    Steps are bounded by the stability limit of the Jacobian (see `kernels.integrate`), which makes
    the derivatives of the discrete map as accurate as the state.

    Args:
        K: (M, M) Gram matrix phi phi^T.
        L0: (M, N) logits phi W0^T at time 0.
        Y, T, lam, weights, rtol, atol, max_steps: as in `solve_flow`.

    Raises:
        ValueError, FlowError: as in `solve_flow`.
    """
    K, L0, Y = _as_float64("K", K, 2), _as_float64("L0", L0, 2), _as_float64("Y", Y, 2)
    M, N = L0.shape
    if K.shape != (M, M) or Y.shape != (M, N):
        raise ValueError(
            f"K is {K.shape} and Y is {Y.shape}; L0 {L0.shape} needs ({M}, {M}) and ({M}, {N})"
        )
    X, _, rejected, states, steps = _integrate(
        K, np.empty((0, 0)), np.ascontiguousarray(L0.T), Y, T, lam, weights,
        rtol, atol, max_steps, differentiable=True,
    )  # fmt: skip
    return ReducedTrajectory(X, states, steps, rejected)


def uniform_weights(n_examples: int) -> Array:
    """(M,) weights 1/M: the mean cross-entropy of the paper."""
    return np.full(n_examples, 1.0 / n_examples)


def balanced_weights(class_of_example: NDArray[np.intp], n_classes: int) -> Array:
    """(M,) weights 1/(N n_c): every class counts the same, however many examples it has."""
    counts = np.bincount(class_of_example, minlength=n_classes)
    return 1.0 / (n_classes * counts[class_of_example])


def effective_horizon(T: float, lam: float) -> float:
    """The time to integrate to: T, or less where lam > 0 has long brought the flow to rest."""
    return min(T, _REGULARISED_TIMES / lam) if lam > 0.0 else T


def check_problem(
    features: Array,
    logits: Array,
    Y: Array,
    T: float,
    lam: float,
    weights: ArrayLike | None,
    rtol: float,
    atol: float,
) -> Array:
    """Refuse what makes no problem; returns the weights (M,), float64.

    Args:
        features: the matrix that multiplies the state, K or phi. logits: at time 0, any layout.
        Y, T, lam, weights, rtol, atol: as in `solve_flow`.

    Raises:
        ValueError: naming the argument.
    """
    M, N = Y.shape
    T, lam = float(T), float(lam)
    if N < 2:
        raise ValueError(f"Y must have a column for each of at least 2 classes, got {N}")
    if not (np.isfinite(T) and T >= 0.0):
        raise ValueError(f"horizon T must be finite and >= 0, got {T}")
    if not (np.isfinite(lam) and lam >= 0.0):
        raise ValueError(f"lam must be finite and >= 0, got {lam}")
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if not MIN_TOLERANCE <= tolerance < 1.0:
            raise ValueError(
                f"{name} must lie in [{MIN_TOLERANCE}, 1) (float64 resolves no less), "
                f"got {tolerance}"
            )
    w = uniform_weights(M) if weights is None else _as_float64("weights", weights, 1)
    if w.shape != (M,) or (w < 0).any():
        raise ValueError(f"weights must be ({M},) and >= 0, got {w.shape}, least {w.min()}")
    if (Y < 0).any() or not np.allclose(Y.sum(axis=1), 1.0, rtol=0, atol=1e-6):
        raise ValueError("every row of Y must be a probability vector (>= 0, summing to 1)")
    if not (np.isfinite(features).all() and np.isfinite(logits).all()):
        raise ValueError("phi and W0 are too large: their products overflow float64")
    return w


def _integrate(
    features: Array,
    back: Array,
    logits: Array,
    Y: Array,
    T: float,
    lam: float,
    weights: ArrayLike | None,
    rtol: float,
    atol: float,
    max_steps: int,
    *,
    differentiable: bool,
    cancel: NDArray[np.bool_] | None = None,
) -> tuple[Array, int, int, Array, Array]:
    w = check_problem(features, logits, Y, T, lam, weights, rtol, atol)
    T, lam = float(T), float(lam)
    # An error e in X is an error of at most (largest absolute row sum of F) |e| in the logits.
    amplification = max(float(np.abs(features).sum(axis=1).max()), 1e-300)
    status, X, accepted, rejected, states, steps, reached = kernels.integrate(
        features, back, logits, np.ascontiguousarray(Y.T), w, lam, effective_horizon(T, lam),
        float(rtol), float(atol) / amplification, int(max_steps), differentiable,
        differentiable, np.zeros(1, dtype=np.bool_) if cancel is None else cancel,
    )  # fmt: skip
    if status != kernels.OK:
        raise FlowError(_explain(status, reached, T, rtol, atol, max_steps))
    return X, accepted, rejected, states, steps


def _explain(
    status: int, reached: float, T: float, rtol: float, atol: float, max_steps: int
) -> str:
    where = f"the flow stopped at t = {reached:.6g} of T = {T:.6g} (rtol {rtol:g}, atol {atol:g})"
    if status == kernels.TOO_MANY_STEPS:
        return (
            f"{where}: {max_steps} steps were not enough. The support set may hold equal images "
            "under different labels; use a shorter horizon, or raise max_steps"
        )
    if status == kernels.CANCELLED:
        return f"{where}: it took too long and was cancelled. Use a shorter horizon"
    if status == kernels.STEP_UNDERFLOW:
        return f"{where}: the step became too small to advance. Loosen rtol and atol"
    return f"{where}: values left the range of float64. Scale the embeddings down"


def _as_float64(name: str, value: ArrayLike, ndim: int) -> Array:
    # Writeable too: the kernels write to no input, but would be compiled anew for read-only ones.
    array = np.require(value, np.float64, ["C", "A", "W"])
    if array.ndim != ndim or 0 in array.shape:
        raise ValueError(f"{name} must have {ndim} axes, none empty; got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinity; all values must be finite")
    return array
