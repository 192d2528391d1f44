"""Embeddings as whole numbers of 16 bits: half of what they take in a database.

Each embedding has a scale of its own, such that its largest coordinate is close to 32767. The error of a coordinate is
at most half a scale, 1.6e-5 of the largest coordinate. In float16 it would be up to 4.9e-4 of each coordinate.

Scales have 8 significant bits. A scale times a number of 15 bits is then exact in float32, so that
rounded embeddings can be told from others, and stored and read without a further change.
"""

import numpy as np
from numpy.typing import NDArray

_LARGEST = 32767
_STEPS = 2**8  # a scale is a power of two times k / _STEPS, with _STEPS / 2 <= k <= _STEPS


def rounded(embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
    """Embeddings (M, d), each rounded to a scale times whole numbers of 16 bits. One that is too large or too small for
    that stays as it is.
    """
    scales = _scales(embeddings)[0]
    exact = np.rint(embeddings / scales) * scales
    with np.errstate(over="ignore", under="ignore"):
        found = exact.astype(np.float32)
    fits = (found == exact).all(axis=1, keepdims=True)
    return np.where(fits, found, embeddings)


def to_int16(embeddings: NDArray[np.float32]) -> tuple[NDArray[np.int16], NDArray[np.float32]] | None:
    """Numbers (M, d) and scales (M,) of rounded embeddings (M, d); None if they are not rounded."""
    if not _whole(embeddings[:1], _scales(embeddings[:1])).any():
        return None  # as soon as the first one is not
    # The largest number may have been below 32767 by so much that the next smaller scale seems to be the right one.
    either = _scales(embeddings)
    whole = _whole(embeddings, either)
    if not whole.any(axis=0).all():
        return None
    scales = np.where(whole[0][:, None], either[0], either[1])
    return (embeddings / scales).astype(np.int16), scales[:, 0].astype(np.float32)


def from_int16(numbers: NDArray[np.int16], scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """Embeddings (M, d) of numbers (M, d) and scales (M,)."""
    return numbers * scales[:, None]


def _scales(embeddings: NDArray[np.float32]) -> NDArray[np.float64]:
    """(2, M, 1) the smallest scale of each embedding (M, d), and the next larger one."""
    largest = np.abs(embeddings).max(axis=1, keepdims=True).astype(np.float64)
    mantissa, exponent = np.frexp(np.where(largest > 0, largest, 1.0) / _LARGEST)
    k = np.ceil(mantissa * _STEPS)
    return np.ldexp(np.stack([k, np.where(k == _STEPS, k + 2, k + 1)]) / _STEPS, exponent)


def _whole(embeddings: NDArray[np.float32], scales: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(2, M) whether each embedding (M, d) is a scale (2, M, 1) times whole numbers of 16 bits."""
    numbers = embeddings / scales
    result: NDArray[np.bool_] = (numbers == np.rint(numbers)).all(axis=2)
    tells = scales[:, :, 0] >= np.finfo(np.float32).tiny  # a smaller one is not exact in float32
    return result & tells
