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
    """(n,) cosine between each embedding (n, d) and the class it is most like, of W (N, d).

    The logit itself will not do: it grows with the length of the embedding, which says little.
    """
    q, rows = embeddings.astype(np.float64), W.astype(np.float64)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), _SMALLEST)
    lengths = np.maximum(np.linalg.norm(q, axis=1), _SMALLEST)
    cosines: NDArray[np.float64] = (q @ rows.T).max(axis=1) / lengths
    return cosines


def threshold(held_out: NDArray[np.float64]) -> float | None:
    """Below what an image is unknown, from the similarities (n,) of held-out support images.

    None where they are too few to say.
    """
    if len(held_out) < LEAST_JUDGED:
        return None
    return float(np.quantile(held_out, REFUSED))
