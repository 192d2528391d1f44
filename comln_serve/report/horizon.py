"""The horizon chosen for one task, from how its own support images are classified when held out.

The flow of a fold passes every candidate, so a curve over horizons costs one integration a fold.
"""

import numpy as np
from numpy.typing import NDArray

from comln_serve.report.content import HorizonCandidate, HorizonChoice
from comln_serve.report.held_out import HeldOut

Array = NDArray[np.float64]

FACTORS: Array = 10.0 ** (np.arange(-8, 9) / 4)
"""Candidates, in units of the learned horizon: from a hundredth to a hundred times of it."""

_LEARNED = int(np.flatnonzero(FACTORS == 1.0)[0])

# A candidate is as good as the best where its loss is higher by no more standard errors of the
# difference than this.
_STANDARD_ERRORS = 2.0
_ROUNDING = 1e-9

# Newton steps towards the scale of the logits with the least loss, and bounds of each and of all.
_NEWTON_STEPS, _LARGEST_FACTOR, _LARGEST_SCALE = 12, 4.0, 1e3


def choose_horizon(
    found: HeldOut, classes: NDArray[np.intp], n_classes: int, learned: float
) -> tuple[int, HorizonChoice]:
    """The candidate to adapt to, of those whose held-out logits `found` has.

    Compared is the cross-entropy of the held-out images, every class counting the same, with the
    logits of each candidate at their own best temperature: a longer flow makes larger logits,
    which is no merit. Accuracy is too coarse on a handful of images. Of all candidates that are as
    good as the best but for noise, the one nearest to the learned horizon is taken.

    Args:
        found: at the horizons `learned` x FACTORS. classes: (M,). learned: T of the head's law.

    Returns:
        The candidate's index, and the curve.
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
    right = np.minimum((logits.argmax(axis=2) == given) @ weights, 1.0)  # the weights are rounded
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
    """(m, n) cross-entropy of each example, logits (m, n, N) scaled to the least weighted mean.

    The mean is convex in the scale; Newton's method, its steps bounded by a factor, as logits that
    put every example right have their least loss at infinity.
    """
    logits = logits - logits.mean(axis=2, keepdims=True)
    truth = np.take_along_axis(logits, given[None, :, None], axis=2)[:, :, 0]
    unit = 1.0 / np.maximum(np.sqrt(np.square(logits).mean(axis=(1, 2))), 1e-30)  # (m,)
    scale = unit.copy()
    for _ in range(_NEWTON_STEPS):
        p = _softmax(scale[:, None, None] * logits)
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


def _softmax(logits: Array) -> Array:
    p = np.exp(logits - logits.max(axis=2, keepdims=True))
    p /= p.sum(axis=2, keepdims=True)
    return p


def _errors(differences: Array, weights: Array) -> Array:
    """(m,) standard errors of the weighted means of (m, n) differences; 0 for a single example."""
    n = len(weights)
    deviations = differences - (differences @ weights)[:, None]
    variances = (np.square(weights * deviations)).sum(axis=1) * n / max(n - 1, 1)
    return np.sqrt(variances)
