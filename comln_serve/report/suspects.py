"""Scores how likely the labels of support images are wrong."""

import numpy as np
from numpy.typing import NDArray

from comln_serve.domain.classifier import softmax

# Score from which an image is listed, and from which one is that has no equal: where the labels of
# all others agree with the classifier, a lower score is as telling. docs/reports.md has what this finds.
THRESHOLD, ONLY_ONE = 0.95, 0.7


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


def listed(scores: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(n,) which of the images with these scores (n,) the report lists."""
    high = scores >= ONLY_ONE
    return high if high.sum() == 1 else scores >= THRESHOLD
