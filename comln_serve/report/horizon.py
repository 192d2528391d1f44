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

_LEARNED = int(np.flatnonzero(FACTORS == 1.0)[0])

# A candidate counts as good as the best if its loss is higher by at most this many standard errors
# of the difference.
_STANDARD_ERRORS = 2.0
_ROUNDING = 1e-9

# Newton steps to the logits' best scale, and largest factors of one step and of all together.
_NEWTON_STEPS, _LARGEST_FACTOR, _LARGEST_SCALE = 12, 4.0, 1e3


def choose_horizon(
    found: HeldOut, classes: NDArray[np.intp], n_classes: int, learned: float
) -> tuple[int, HorizonChoice]:
    """Choose the candidate horizon by its loss on the held-out images.

    The loss is the cross-entropy with equal weight for all classes, with each candidate's logits at
    their own best temperature: a longer flow makes larger logits, which is no merit. Accuracy is
    too coarse on a handful of images. Of the candidates within noise of the best, the one nearest
    to the learned horizon is chosen.

    Args:
        found: results at the horizons `learned` x FACTORS.
        classes: (M,).
        learned: T of the head's law.

    Returns:
        The candidate's index, and the losses of all candidates.
    """
    logits, given = found.logits[:, found.judged], classes[found.judged]
    per_class = np.bincount(given, minlength=n_classes)
    weights = 1.0 / per_class[given]
    weights /= weights.sum()
    losses = _losses_at_best_scale(logits, given, weights)  # (m, n)
    means = losses @ weights
    best = int(means.argmin())
    errors = _errors(losses - losses[best], weights)
    level = means - means[best] <= _STANDARD_ERRORS * errors + _ROUNDING
    candidates = np.flatnonzero(level)
    chosen = int(candidates[np.abs(candidates - _LEARNED).argmin()])
    # Rounded weights may add up to more than 1.
    right = np.minimum((logits.argmax(axis=2) == given) @ weights, 1.0)
    horizons = learned * FACTORS
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
    """(m, n) cross-entropy of each example, with logits (m, n, N) scaled for the least mean loss.

    The weighted mean is convex in the scale. Newton's method finds the minimum; its steps are
    bounded, as logits that classify every example correctly have their least loss at infinity.
    """
    logits = logits - logits.mean(axis=2, keepdims=True)
    truth = np.take_along_axis(logits, given[None, :, None], axis=2)[:, :, 0]
    unit = 1.0 / np.maximum(np.sqrt(np.square(logits).mean(axis=(1, 2))), 1e-30)  # (m,)
    scale = unit.copy()
    for _ in range(_NEWTON_STEPS):
        p = softmax(scale[:, None, None] * logits)
        mean = (p * logits).sum(axis=2)
        slope = (mean - truth) @ weights
        curvature = ((p * np.square(logits)).sum(axis=2) - np.square(mean)) @ weights
        step = scale - slope / np.maximum(curvature, 1e-30)
        scale = np.clip(step, scale / _LARGEST_FACTOR, scale * _LARGEST_FACTOR)
        scale = np.clip(scale, unit / _LARGEST_SCALE, unit * _LARGEST_SCALE)
    scaled = scale[:, None, None] * logits
    largest = scaled.max(axis=2)
    total = np.log(np.exp(scaled - largest[:, :, None]).sum(axis=2))
    losses: Array = largest + total - scale[:, None] * truth
    return losses


def _errors(differences: Array, weights: Array) -> Array:
    """(m,) standard errors of the weighted means of (m, n) differences; 0 for a single example."""
    n = len(weights)
    deviations = differences - (differences @ weights)[:, None]
    variances = (np.square(weights * deviations)).sum(axis=1) * n / max(n - 1, 1)
    return np.sqrt(variances)
