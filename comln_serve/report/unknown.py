"""Similarity of images to their likeliest class, and the threshold below which they are `unknown`.

docs/reports.md compares this score with others, and has the share of known images it refuses.
"""

import numpy as np
from numpy.typing import NDArray

# Share of images of known classes that the threshold calls unknown.
REFUSED = 0.05
# Held-out images needed to estimate the 5% quantile of their similarities.
LEAST_JUDGED = 20

_SMALLEST = 1e-30


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


def row_length(W: NDArray[np.float32]) -> float:
    """The average length of the rows of W (N, d)."""
    return float(average_length(np.square(W, dtype=np.float64).sum(axis=1)))


def average_length(squares: NDArray[np.float64]) -> NDArray[np.float64]:
    """(...) root mean square, not 0, of lengths whose squares are (..., N)."""
    result: NDArray[np.float64] = np.sqrt(np.maximum(squares.mean(axis=-1), _SMALLEST**2))
    return result


def threshold(held_out: NDArray[np.float64]) -> float | None:
    """Similarity below which an image is unknown, from those (n,) of held-out support images; None
    if these are too few.
    """
    if len(held_out) < LEAST_JUDGED:
        return None
    return float(np.quantile(held_out, REFUSED))
