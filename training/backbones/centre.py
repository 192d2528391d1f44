"""Weights by which the centre of a feature map counts more than its edges."""

import numpy as np
from numpy.typing import NDArray

# Of a power mean: keeps the gradient of the root finite where a channel is 0 everywhere.
LEAST = 1e-12


def centre_weights(height: int, width: int, sigma: float) -> NDArray[np.float32]:
    """Weights (height, width) that add up to 1: a Gaussian of the distance to the centre, with a standard deviation of
    `sigma` times each side.
    """
    places = ((np.arange(n) + 0.5) / n - 0.5 for n in (height, width))  # distances to the centre of a side of length 1
    rows, columns = (np.exp(-0.5 * (at / sigma) ** 2) for at in places)
    # In float64 until here: CPUs differ in the last bit of a float32 exp, and a graph's checksum contains the weights.
    return np.outer(rows / rows.sum(), columns / columns.sum()).astype(np.float32)
