"""Scores how likely the labels of support images are wrong."""

import numpy as np
from numpy.typing import NDArray

from comln_serve.domain.classifier import softmax

# Score from which an image is listed. docs/reports.md has what this finds.
THRESHOLD = 0.95


def suspicion(
    logits: NDArray[np.float64], classes: NDArray[np.intp], temperature: float
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Compare the given label with the likeliest other label.

    Args:
        logits: (n, N) of held-out examples.
        classes: (n,) class indices of their given labels.

    Returns:
        (n,) p_other / (p_other + p_given), from 0 to 1, and (n,) class indices of the other labels.
    """
    rows = np.arange(len(classes))
    given = logits[rows, classes]
    others = logits.copy()
    others[rows, classes] = -np.inf
    likelier = others.argmax(axis=1)
    pair = np.stack([others[rows, likelier], given], axis=1)
    return softmax(pair, temperature)[:, 0], likelier
