"""`gradient_flow`: adaptation as one differentiable operation on torch tensors."""

from typing import Literal

import torch
from torch import Tensor

from training.gradient_flow.adjoint import ReducedFlow
from training.gradient_flow.forward import forward_flow

Method = Literal["adjoint", "forward"]

# What the derivatives need, not what W(T) needs: see docs/derivation.md for the measured errors.
DEFAULT_RTOL = 1e-8
DEFAULT_ATOL = 1e-8
DEFAULT_MAX_STEPS = 200_000


def gradient_flow(
    phi: Tensor,
    W0: Tensor,
    Y: Tensor,
    T: Tensor | float,
    *,
    lam: Tensor | float = 0.0,
    weights: Tensor | None = None,
    method: Method = "adjoint",
    rtol: float = DEFAULT_RTOL,
    atol: float = DEFAULT_ATOL,
    max_steps: int = DEFAULT_MAX_STEPS,
) -> Tensor:
    """Adapt linear classifiers by gradient flow, differentiably: equation 4 and Algorithm 4.

    W(T) solves dW/dt = -grad L(W), W(0) = W0, with L the (weighted) mean cross-entropy of
    softmax(phi W^T) against Y plus lam/2 ||W - W0||^2_F. Batched over leading axes (tasks); every
    task is integrated with its own step size, in float64 whatever the dtype of the inputs.

    Args:
        phi: (..., M, d) support embeddings, floating point, on any device.
        W0: (N, d) shared by the tasks, or (..., N, d).
        Y: (..., M, N) one-hot or soft labels, any dtype; no gradient.
        T: horizon >= 0 in flow time; a scalar, or one per task (...,).
        lam: regularisation >= 0; a scalar, or one per task.
        weights: (..., M) weight >= 0 of each example, default 1/M. A weight of 0 makes a row
            padding.
        method: "adjoint", the adjoint of the reduced flow: fast, memory proportional to the
            accepted steps (a few tens). "forward", the paper's (s, B, z) system: memory
            O(M^2 N^2 + M^3 N) however long the flow.
        rtol, atol: tolerance of the local error.
        max_steps: tried steps allowed per task.

    Returns:
        (..., N, d) W(T), dtype and device of phi. Differentiable once in phi, W0, T, lam and
        weights (Propositions 2, 3 and 5); a second derivative raises an error.

    Raises:
        ValueError: shapes or values that make no problem.
        comln_serve.flow.FlowError: the tolerance could not be met.
    """
    if not phi.is_floating_point():
        raise ValueError(f"phi must be floating point, got {phi.dtype}")
    if phi.ndim < 2 or W0.ndim < 2 or Y.ndim != phi.ndim:
        raise ValueError(
            "need phi (..., M, d), W0 (N, d) or (..., N, d) and Y (..., M, N); got "
            f"{tuple(phi.shape)}, {tuple(W0.shape)} and {tuple(Y.shape)}"
        )
    *batch, M, d = phi.shape
    N = Y.shape[-1]
    if list(Y.shape) != [*batch, M, N] or W0.shape[-2:] != (N, d):
        raise ValueError(
            f"phi {tuple(phi.shape)} and Y {tuple(Y.shape)} need W0 (..., {N}, {d}) and Y "
            f"{(*batch, M, N)}; got W0 {tuple(W0.shape)}"
        )
    for name, tensor in (("phi", phi), ("W0", W0)):
        if tensor.numel() == 0 or not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} {tuple(tensor.shape)} is empty or holds NaN or infinity")

    def per_task(name: str, value: Tensor | float, *shape: int) -> Tensor:
        """`value` in float64, broadcast over the tasks: (tasks, *shape)."""
        tensor = torch.as_tensor(value, dtype=torch.float64, device=phi.device)
        try:
            return tensor.expand((*batch, *shape)).reshape((-1, *shape))
        except RuntimeError:
            raise ValueError(
                f"{name} is {tuple(tensor.shape)}, which does not broadcast to {(*batch, *shape)}"
            ) from None

    phi64, W064 = per_task("phi", phi, M, d), per_task("W0", W0, N, d)
    Y64 = per_task("Y", Y.detach(), M, N)
    T64, lam64 = per_task("T", T), per_task("lam", lam)
    w64 = per_task("weights", 1.0 / M if weights is None else weights, M)

    if method == "adjoint":
        phi_t = phi64.transpose(-1, -2)
        s = ReducedFlow.apply(
            phi64 @ phi_t, phi64 @ W064.transpose(-1, -2), Y64, w64, T64, lam64,
            rtol, atol, max_steps,
        )  # fmt: skip
        W = W064 - s.transpose(-1, -2) @ phi64
    elif method == "forward":
        W = torch.stack(
            [
                forward_flow(*task, rtol=rtol, atol=atol, max_steps=max_steps)
                for task in zip(phi64, W064, Y64, w64, T64, lam64, strict=True)
            ]
        )
    else:
        raise ValueError(f'method must be "adjoint" or "forward", got {method!r}')
    return W.reshape(*batch, N, d).to(phi.dtype)
