"""Chooses the horizon of one task by cross-validation on its support images.

The flow of a fold passes every candidate, so all candidates cost one integration per fold.
"""

import numpy as np
from numpy.typing import NDArray

from comln_serve.domain.classifier import softmax
from comln_serve.domain.report import HorizonCandidate, HorizonChoice
from comln_serve.flow.problem import Array
from comln_serve.report.held_out import HeldOut

FACTORS: Array = 10.0 ** (np.arange(-8, 9) / 4)
"""Candidates in units of the learned horizon, from 1/100 to 100."""

# Held-out logits of all candidates, of which there are up to four copies: 64 MB each. All 17 candidates fit into it
# up to 5000 images of 98 classes.
_MOST_LOGITS = 2**23

# A candidate counts as good as the best if its loss is higher by at most this many standard errors of the difference.
_STANDARD_ERRORS = 2.0
_ROUNDING = 1e-9

# Newton steps to the logits' best scale, and largest factors of one step and of all together.
_NEWTON_STEPS, _LARGEST_FACTOR, _LARGEST_SCALE = 12, 4.0, 1e3


def candidate_factors(examples: int, n_classes: int) -> Array:
    """Those of FACTORS that are compared for M examples of N classes: all, or every second, fourth, ... if the
    memory for all would be too much. 1 and both ends are always among them.
    """
    stride = 1
    while len(FACTORS[::stride]) > 3 and len(FACTORS[::stride]) * examples * n_classes > _MOST_LOGITS:
        stride *= 2
    return FACTORS[::stride]


def choose_horizon(
    found: HeldOut, classes: NDArray[np.intp], n_classes: int, learned: float, factors: Array = FACTORS
) -> tuple[int, HorizonChoice]:
    """Choose the candidate horizon by its loss on the held-out images.

    The loss is the cross-entropy with equal weight for all classes, with each candidate's logits at
    their own best temperature: a longer flow makes larger logits, which is no merit. Accuracy is
    too coarse on a handful of images. Of the candidates within noise of the best, the one nearest
    to the learned horizon is chosen.

    Args:
        found: results at the horizons `learned` x `factors`.
        classes: (M,).
        learned: T of the head's law.
        factors: (m,) ascending, with 1 among them.

    Returns:
        The candidate's index, and the losses of all candidates.
    """
    given, center = classes[found.judged], int(np.flatnonzero(factors == 1.0)[0])
    per_class = np.bincount(given, minlength=n_classes)
    weights = 1.0 / per_class[given]
    weights /= weights.sum()
    losses, right = np.empty((len(factors), len(given))), np.empty(len(factors))
    for at, table in enumerate(found.logits):  # one at a time: the arrays of all would take several times the memory
        logits = table[found.judged]
        losses[at] = _losses_at_best_scale(logits, given, weights)
        right[at] = min((logits.argmax(axis=1) == given) @ weights, 1.0)  # rounded weights may add up to more than 1
    means = losses @ weights
    best = int(means.argmin())
    errors = _errors(losses - losses[best], weights)
    level = means - means[best] <= _STANDARD_ERRORS * errors + _ROUNDING
    candidates = np.flatnonzero(level)
    chosen = int(candidates[np.abs(candidates - center).argmin()])
    horizons = learned * factors
    return chosen, HorizonChoice(
        learned=learned,
        least_loss=float(horizons[best]),
        level=(float(horizons[candidates[0]]), float(horizons[candidates[-1]])),
        candidates=[
            HorizonCandidate(horizon=float(T), loss=float(loss), accuracy=float(share))
            for T, loss, share in zip(horizons, means, right, strict=True)
        ],
    )


def _losses_at_best_scale(logits: Array, given: NDArray[np.intp], weights: Array) -> Array:
    """(n,) cross-entropy of each example, with logits (n, N) scaled for the least mean loss.

    The weighted mean is convex in the scale. Newton's method finds the minimum; its steps are
    bounded, as logits that classify every example correctly have their least loss at infinity.
    """
    logits = logits - logits.mean(axis=1, keepdims=True)
    truth = logits[np.arange(len(given)), given]
    unit = 1.0 / max(float(np.sqrt(np.square(logits).mean())), 1e-30)
    scale = unit
    for _ in range(_NEWTON_STEPS):
        p = softmax(scale * logits)
        mean = (p * logits).sum(axis=1)
        slope = float((mean - truth) @ weights)
        curvature = float(((p * np.square(logits)).sum(axis=1) - np.square(mean)) @ weights)
        step = scale - slope / max(curvature, 1e-30)
        scale = min(max(step, scale / _LARGEST_FACTOR), scale * _LARGEST_FACTOR)
        scale = min(max(scale, unit / _LARGEST_SCALE), unit * _LARGEST_SCALE)
    scaled = scale * logits
    largest = scaled.max(axis=1)
    total = np.log(np.exp(scaled - largest[:, None]).sum(axis=1))
    losses: Array = largest + total - scale * truth
    return losses


def _errors(differences: Array, weights: Array) -> Array:
    """(m,) standard errors of the weighted means of (m, n) differences; 0 for a single example."""
    n = len(weights)
    deviations = differences - (differences @ weights)[:, None]
    variances = (np.square(weights * deviations)).sum(axis=1) * n / max(n - 1, 1)
    return np.sqrt(variances)
