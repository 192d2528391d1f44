"""The whitening metric of `comln_serve.flow.metric` for torch tensors, differentiable."""

import torch
from torch import Tensor


def whitened(phi: Tensor, weights: Tensor, strength: Tensor | float) -> Tensor:
    """Psi (..., M, d) = phi P, P = (I + r phi^T D phi)^-1, D = diag(M w), in phi's dtype.

    Computed in float64 as (I + r K D)^-1 phi = phi - r K D^1/2 C^-1 D^1/2 phi with the symmetric
    C = I + r D^1/2 K D^1/2.

    Args:
        phi: (..., M, d) support embeddings. weights: (..., M) of the examples, > 0, summing to 1.
        strength: r >= 0, a scalar.
    """
    rows = phi.double()
    roots = (weights.double() * phi.shape[-2]).sqrt()[..., None]  # (..., M, 1)
    scaled = roots * rows
    inner = strength * (scaled @ scaled.mT) + torch.eye(phi.shape[-2], device=phi.device)
    shared = (rows @ scaled.mT) @ torch.linalg.solve(inner, scaled)
    return (rows - strength * shared).to(phi.dtype)
