"""The temperature of a classifier's probabilities, fitted to its held-out support images."""

import numpy as np
from numpy.typing import NDArray

# Held-out images needed.
LEAST_JUDGED = 10

# The temperature is within exp(-5) and exp(5). Five grids of eleven points, each around the best point of the one
# before, find its logarithm to within 0.002.
_LARGEST_LOG, _POINTS, _GRIDS = 5.0, 11, 5
# Logits that are looked at: the computation has eleven times as many.
_MOST_LOGITS = 2**18


def fit_temperature(logits: NDArray[np.float64], classes: NDArray[np.intp]) -> float | None:
    """The temperature that held-out logits are best divided by; None if there are fewer than 10 images.

    It has the least sum of cross-entropies of the images plus ln(temperature)^2, which is a normal prior of the
    logarithm. Without the prior, few images that are all classified right would make the temperature 0.

    Args:
        logits: (n, N) of images that the classifiers were adapted without.
        classes: (n,) of the images.
    """
    n, ways = logits.shape
    if n < LEAST_JUDGED:
        return None
    every = -(-n * ways // _MOST_LOGITS)  # hundreds are left, whose losses are far more than the prior
    below = (logits - logits.max(axis=1, keepdims=True))[::every]
    of_class = below[np.arange(len(below)), classes[::every]]
    low, high = -_LARGEST_LOG, _LARGEST_LOG
    best = 0.0
    for _ in range(_GRIDS):
        grid = np.linspace(low, high, _POINTS)
        inverse = np.exp(-grid)[:, None]
        normaliser = np.log(np.exp(inverse[..., None] * below).sum(axis=2))
        losses = (normaliser - inverse * of_class).sum(axis=1) + grid**2
        at = int(losses.argmin())
        best = float(grid[at])
        low, high = grid[max(at - 1, 0)], grid[min(at + 1, _POINTS - 1)]
    return float(np.exp(best))
