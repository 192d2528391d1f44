"""Heads whose setting is chosen in every task, by cross-validation on its support images.

This is what a user of scikit-learn would do with a few labelled images and their embeddings. Fold f
holds every class's images number f, f + folds, ... The chosen value is fitted on all images.
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
    usual: float,
    criterion: Criterion,
    phi: NDArray[np.floating],
    classes: Classes,
    ways: int,
) -> float:
    """The value of the grid that is best on held-out support images; every class counts the same.

    Args:
        grid: ascending. Of equally good values, the one nearest to its middle.
        usual: the value where a class has one example, of which none can be held out.
        criterion: "log loss" takes the scores as logits.
        phi: (M, d). classes: (M,). ways: N.
    """
    folds = min(MOST_FOLDS, int(np.bincount(classes, minlength=ways).min()))
    if folds < 2:
        return usual
    assigned = np.empty(len(classes), dtype=np.intp)
    for c in range(ways):
        members = np.flatnonzero(classes == c)
        assigned[members] = np.arange(len(members)) % folds
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
    # Rounded, so that the same images, added up in another order, are no difference.
    best = np.flatnonzero(merits.round(12) == merits.round(12).max())
    return grid[int(best[np.argmin(np.abs(best - (len(grid) - 1) / 2))])]


def cross_validated(
    fit: Scored, grid: Sequence[float], usual: float, criterion: Criterion
) -> Callable[[NDArray[np.floating], Classes, int, NDArray[np.floating]], NDArray[np.floating]]:
    """`fit` with its value chosen in the task: phi, classes, N, queries -> scores (Q, N)."""

    def scores(
        phi: NDArray[np.floating], classes: Classes, ways: int, query: NDArray[np.floating]
    ) -> NDArray[np.floating]:
        value = choose_setting(fit, grid, usual, criterion, phi, classes, ways)
        return fit(phi, classes, ways, query, value)

    return scores
