"""Support images whose label the other support images speak against."""

import numpy as np
from numpy.typing import NDArray

from comln_serve.classifier import softmax

# How likely the other label must be, of the two. docs/reports.md has what this finds.
THRESHOLD = 0.95


def suspicion(
    logits: NDArray[np.float64], classes: NDArray[np.intp], temperature: float
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """How much likelier the likeliest other label is than the one given.

    Args:
        logits: (n, N) of examples that were held out. classes: (n,) their given labels.

    Returns:
        (n,) p_other / (p_other + p_given), from 0 to 1, and (n,) that other label.
    """
    rows = np.arange(len(classes))
    given = logits[rows, classes]
    others = logits.copy()
    others[rows, classes] = -np.inf
    likelier = others.argmax(axis=1)
    pair = np.stack([others[rows, likelier], given], axis=1)
    return softmax(pair, temperature)[:, 0], likelier
