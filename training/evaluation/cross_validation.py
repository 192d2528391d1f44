"""Heads whose setting is chosen in every task, by cross-validation on its support images.

This is what a user of scikit-learn would do with a few labelled images and their embeddings. Fold f has the images
number f, f + folds, ... of every class. The head is then fitted on all images with the chosen value.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from comln_serve.flow import balanced_weights

MOST_FOLDS = 5

Classes = NDArray[np.intp]
Scored = Callable[[NDArray[np.floating], Classes, int, NDArray[np.floating], float], NDArray[np.floating]]
"""A head with a setting: phi (M, d), classes (M,), N, queries (Q, d), value -> scores (Q, N)."""

Criterion = Literal["log loss", "accuracy"]


def choose_setting(
    fit: Scored,
    grid: Sequence[float],
    default: float,
    criterion: Criterion,
    phi: NDArray[np.floating],
    classes: Classes,
    ways: int,
    views: int = 1,
) -> float:
    """The value of the grid that is best on held-out support images; every class has the same weight.

    Args:
        grid: ascending. Of equally good values, the one nearest to its middle is chosen.
        default: the value if a class has only one example, which cannot be held out.
        criterion: "log loss" takes the scores as logits.
        phi: (M, d). classes: (M,). ways: N.
        views: number of examples of each image, one after another, which are held out together.
    """
    folds = min(MOST_FOLDS, int(np.bincount(classes, minlength=ways).min()) // views)
    if folds < 2:
        return default
    assigned = np.empty(len(classes), dtype=np.intp)
    for c in range(ways):
        members = np.flatnonzero(classes == c)
        assigned[members] = np.arange(len(members)) // views % folds
    w = balanced_weights(classes, ways)
    merits = np.zeros(len(grid))
    for fold in range(folds):
        out = assigned == fold
        for i, value in enumerate(grid):
            scores = fit(phi[~out], classes[~out], ways, phi[out], value)
            if criterion == "log loss":
                logs = log_softmax(scores, axis=1)
                merits[i] += w[out] @ logs[np.arange(len(logs)), classes[out]]
            else:
                merits[i] += w[out] @ (scores.argmax(axis=1) == classes[out])
    # Rounded, so that the order of the sums makes no difference.
    best = np.flatnonzero(merits.round(12) == merits.round(12).max())
    return grid[int(best[np.argmin(np.abs(best - (len(grid) - 1) / 2))])]
