"""Similarity of images to their likeliest class, and the threshold below which they are `unknown`.

docs/reports.md compares this score with others, and has the share of known images it refuses.
"""

import numpy as np
from numpy.typing import NDArray

# Share of images of known classes that the threshold calls unknown.
REFUSED = 0.05
# Held-out images needed for a threshold of their own, and for the 5% quantile of their similarities.
LEAST_JUDGED, LEAST_FOR_QUANTILE = 3, 20
# 95% quantiles of Student's t distribution with 2, 3, ..., 18 degrees of freedom.
_T95 = (2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
_T95 += (1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734)

_SMALLEST = 1e-30
_BLOCK = 256  # embeddings in float64 at a time


def similarity(embeddings: NDArray[np.float32], W: NDArray[np.float32]) -> NDArray[np.float64]:
    """(n,) similarity of each embedding (n, d) to its likeliest class, for W (N, d).

    The largest logit, divided by the embedding's length, which carries little information, and by
    the average length of the rows of W. It would be the cosine if all rows had one length. The
    differences between their lengths are learned and help to detect unknown classes.
    """
    q = embeddings.astype(np.float64)
    lengths = np.maximum(np.linalg.norm(q, axis=1), _SMALLEST)
    found: NDArray[np.float64] = (q @ W.T.astype(np.float64)).max(axis=1) / (lengths * row_length(W))
    return found


def nearest_other(embeddings: NDArray[np.float32], classes: NDArray[np.intp], W: NDArray[np.float32]) -> float:
    """Mean similarity of embeddings (n, d) of classes (n,) to the class of W (N, d) most like each but its own."""
    found = np.empty(len(classes))
    unit = W.T.astype(np.float64) / row_length(W)
    for start in range(0, len(classes), _BLOCK):
        q, own = embeddings[start : start + _BLOCK].astype(np.float64), classes[start : start + _BLOCK]
        alike = q @ unit / np.maximum(np.linalg.norm(q, axis=1, keepdims=True), _SMALLEST)
        alike[np.arange(len(q)), own] = -np.inf
        found[start : start + _BLOCK] = alike.max(axis=1)
    return float(found.mean())


def row_length(W: NDArray[np.float32]) -> float:
    """The average length of the rows of W (N, d)."""
    return float(average_length(np.square(W, dtype=np.float64).sum(axis=1)))


def average_length(squares: NDArray[np.float64]) -> NDArray[np.float64]:
    """(...) root mean square, not 0, of lengths whose squares are (..., N)."""
    result: NDArray[np.float64] = np.sqrt(np.maximum(squares.mean(axis=-1), _SMALLEST**2))
    return result


def threshold(held_out: NDArray[np.float64]) -> float | None:
    """Similarity below which an image is unknown, from those (n,) of held-out support images; None if n < 3.

    From n = 20 on it is their 5% quantile. Below, it is the lower end of the one-sided 95% prediction interval of
    another normally distributed value, mean - t s sqrt(1 + 1/n), for their standard deviation s and the 95% quantile t
    of Student's distribution with n - 1 degrees of freedom: wider, the fewer images there are.
    """
    n = len(held_out)
    if n < LEAST_JUDGED:
        return None
    if n >= LEAST_FOR_QUANTILE:
        return float(np.quantile(held_out, REFUSED))
    return float(held_out.mean() - _T95[n - LEAST_JUDGED] * held_out.std(ddof=1) * np.sqrt(1 + 1 / n))
