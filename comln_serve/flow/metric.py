"""The metric in which the flow descends: it shortens steps along directions that images share.

The paper's flow follows -grad L(W). Embeddings of a trained network agree in a few directions. W
moves along these first and farthest, long before it moves along the directions in which similar
classes differ. With a whitening strength r > 0 the flow is

    dW/dt = -grad L(W) P,    P = (I + r phi^T D phi)^-1,    D = diag(M w_m)

for M support embeddings phi (M, d) with weights w; r = 0 is the paper's. It descends the same loss,
W(T) - W0 stays in the span of phi, and in reduced coordinates only the Gram matrix changes:

    W(t) = W0 - s(t)^T psi,    psi = phi P = B phi,    B = (I + r K D)^-1,    K' = psi phi^T = B K.

For a zero start and short T this is ridge regression with penalty 1/r, for long T the maximum
margin in the metric of P. docs/derivation.md has the derivation.
"""

import numpy as np

from comln_serve.flow.problem import Array


def whitening_of_gram(gram: Array, weights: Array, strength: float) -> Array:
    """B (M, M) = (I + r K D)^-1 for K (M, M), computed by inverting a symmetric matrix.

    Args:
        weights: (M,) of the examples in the loss, summing to 1. Examples with weight 0 have no part
            in the metric; their rows of B K are the products of `psi` with a query.
        strength: r > 0.
    """
    roots = np.sqrt(weights * np.count_nonzero(weights))
    inner = strength * roots[:, None] * gram * roots
    inner[np.diag_indices_from(inner)] += 1.0
    B: Array = -strength * (gram * roots) @ np.linalg.solve(inner, np.diag(roots))
    B[np.diag_indices_from(B)] += 1.0
    return B


def whitened(phi: Array, weights: Array, strength: float) -> Array:
    """psi (M, d) = phi P for phi (M, d); phi itself for strength 0. See the module.

    Inverts the smaller of two matrices, of size M or d.
    """
    if strength == 0.0:
        return phi
    if phi.shape[0] <= phi.shape[1]:
        return whitening_of_gram(phi @ phi.T, weights, strength) @ phi
    scale = strength * np.count_nonzero(weights)
    inner = (phi.T * (scale * weights)) @ phi
    inner[np.diag_indices_from(inner)] += 1.0
    return np.linalg.solve(inner, phi.T).T.astype(np.float64, copy=False)


def symmetric(gram: Array) -> Array:
    """Remove the rounding errors that make a Gram matrix (M, M) asymmetric."""
    result: Array = 0.5 * (gram + gram.T)
    return result
