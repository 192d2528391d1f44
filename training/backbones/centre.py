"""Weights by which the centre of a feature map counts more than its edges."""

import numpy as np
from numpy.typing import NDArray

# Of a power mean: keeps the gradient of the root finite where a channel is 0 everywhere.
LEAST = 1e-12


def centre_weights(height: int, width: int, sigma: float) -> NDArray[np.float32]:
    """Weights (height, width) that add up to 1: a Gaussian of the distance to the centre, with a standard deviation of
    `sigma` times each side.
    """
    rows, columns = (np.exp(-0.5 * (_places(n) / sigma) ** 2) for n in (height, width))
    # In float64 until here: CPUs differ in the last bit of a float32 exp, and a graph's checksum contains the weights.
    return np.outer(rows / rows.sum(), columns / columns.sum()).astype(np.float32)


def _places(n: int) -> NDArray[np.float64]:
    """(n,) distances to the centre of n places that divide a side of length 1."""
    return (np.arange(n) + 0.5) / n - 0.5
