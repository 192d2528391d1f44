"""Inputs of a flow: their checks, the examples' weights, the effective horizon."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false

import math

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

MIN_TOLERANCE = 1e-12

# With lam > 0 the flow contracts at rate lam: after 60 / lam neither the state nor its derivatives
# change in float64 (exp(-60) is 9e-27), so later times are not integrated.
_REGULARISED_TIMES = 60.0


def uniform_weights(n_examples: int) -> Array:
    """(M,) weights 1/M: the mean cross-entropy of the paper."""
    return np.full(n_examples, 1.0 / n_examples)


def balanced_weights(class_of_example: NDArray[np.intp], n_classes: int) -> Array:
    """(M,) weights 1/(N n_c): all classes have equal weight, however many examples they have."""
    counts = np.bincount(class_of_example, minlength=n_classes)
    return 1.0 / (n_classes * counts[class_of_example])


def reduced_is_cheaper(examples: int, width: int) -> bool:
    """Whether a step in s (M x M products, one) costs no more than one in W (M x d, two)."""
    return examples <= 2 * width


def effective_horizon(T: float, lam: float) -> float:
    """The time to integrate to: T, or less if lam > 0 brings the flow to rest before."""
    return min(T, _REGULARISED_TIMES / lam) if lam > 0.0 else T


def check_problem(features: Array, logits: Array, Y: Array, T: float, lam: float, weights: Array) -> None:
    """Validate the inputs of a flow.

    Args:
        features: the matrix that multiplies the state, K or phi.
        logits: (N, M), at time 0.
        Y: (N, M), the transpose of `solve_flow`'s.
        weights: (M,).
        T, lam: as in `solve_flow`.

    Raises:
        ValueError: an argument is invalid; the message names it.
    """
    N, M = Y.shape
    if N < 2:
        raise ValueError(f"Y must have a column for each of at least 2 classes, got {N}")
    if not (math.isfinite(T) and T >= 0.0):
        raise ValueError(f"horizon T must be finite and >= 0, got {T}")
    if not (math.isfinite(lam) and lam >= 0.0):
        raise ValueError(f"lam must be finite and >= 0, got {lam}")
    if weights.shape != (M,):
        raise ValueError(f"weights must be ({M},), finite and >= 0; got {weights.shape}")
    fault = _fault(features, logits, Y, weights)
    if fault == "weights":
        raise ValueError(f"weights must be ({M},), finite and >= 0; got values from {weights.min()} to {weights.max()}")
    if fault == "Y":
        raise ValueError("every row of Y must be a probability vector (>= 0, summing to 1)")
    if fault == "products":
        raise ValueError("phi and W0 are too large: their products overflow float64")


@njit(cache=True, nogil=True, error_model="numpy")
def _fault(features, logits, Y, weights):  # type: ignore[no-untyped-def]
    """Name of the first invalid table, or "". One pass: for small tasks its time matters."""
    for weight in weights:
        if not 0.0 <= weight < np.inf:
            return "weights"
    for m in range(Y.shape[1]):
        total = 0.0
        for n in range(Y.shape[0]):
            if not Y[n, m] >= 0.0:
                return "Y"
            total += Y[n, m]
        if not abs(total - 1.0) <= 1e-6:
            return "Y"
    for table in (features, logits):
        for x in table.flat:
            if not np.isfinite(x):
                return "products"
    return ""


def check_tolerances(rtol: float, atol: float) -> None:
    """Refuse tolerances that float64 cannot resolve.

    Raises:
        ValueError: a tolerance is out of range; the message names it.
    """
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if not MIN_TOLERANCE <= tolerance < 1.0:
            raise ValueError(f"{name} must lie in [{MIN_TOLERANCE}, 1) (float64 resolves no less), got {tolerance}")


def as_float64(name: str, value: ArrayLike, ndim: int) -> Array:
    """Convert `value` to a finite float64 array with `ndim` axes for the kernels.

    Raises:
        ValueError: `value` cannot be converted; the message names the argument.
    """
    # Writeable, as Numba would compile the kernels anew for read-only inputs.
    array = np.require(value, np.float64, ["C", "A", "W"])
    if array.ndim != ndim or 0 in array.shape:
        raise ValueError(f"{name} must have {ndim} axes, none empty; got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinity; all values must be finite")
    return array
