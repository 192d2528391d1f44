"""ANIL: autograd through gradient descent on the head."""

import torch
from torch import Tensor


def anil_head(W0: Tensor, phi: Tensor, Y: Tensor, steps: int, rate: float) -> Tensor:
    """ANIL: the head (N, d) after `steps` of gradient descent on embeddings, unrolled.

    The inner gradient is written out. Asking autograd for it, as libraries do, walks the whole
    graph so far at every step: the time grows with the square of the steps (30 s for 1000).
    """
    W = W0
    for _ in range(steps):
        W = W + rate / len(phi) * ((Y - torch.softmax(phi @ W.T, dim=1)).T @ phi)
    return W
