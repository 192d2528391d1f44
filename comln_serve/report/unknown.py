"""Images that are unlike every class: how alike is measured, and where `unknown` begins.

How docs/reports.md compares this score with others, and what share of known images is refused.
"""

import numpy as np
from numpy.typing import NDArray

# The share of images of known classes that is given up.
REFUSED = 0.05
# So many held-out images it takes to say below what a twentieth of them lies.
LEAST_JUDGED = 20

_SMALLEST = 1e-30


def similarity(embeddings: NDArray[np.float32], W: NDArray[np.float32]) -> NDArray[np.float64]:
    """(n,) how like its likeliest class each embedding (n, d) is, for W (N, d).

    The largest logit, over the length of the embedding, which says little of it, and over the
    length that the rows of W have on average: the cosine, were all rows of one length. Differences
    between their lengths are part of what was learned, and tell strangers apart.
    """
    q, rows = embeddings.astype(np.float64), W.astype(np.float64)
    lengths = np.maximum(np.linalg.norm(q, axis=1), _SMALLEST)
    found: NDArray[np.float64] = (q @ rows.T).max(axis=1) / (lengths * average_length(rows))
    return found


def average_length(rows: NDArray[np.float64]) -> float:
    """Root mean square of the lengths of the rows of W (N, d), not 0."""
    return max(float(np.sqrt(np.square(rows).sum(axis=1).mean())), _SMALLEST)


def threshold(held_out: NDArray[np.float64]) -> float | None:
    """Below what an image is unknown, from the similarities (n,) of held-out support images.

    None where they are too few to say.
    """
    if len(held_out) < LEAST_JUDGED:
        return None
    return float(np.quantile(held_out, REFUSED))
