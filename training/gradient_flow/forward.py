"""Exact meta-gradients by forward sensitivity, the paper's way (method "forward").

Beside s (M, N) the system carries B (M, M, N, N) and z (M, M, M, N) (Propositions 2 and 3), from 0:

    ds[i]/dt     = w_i (p_i - y_i) - lam s_i
    dB[i,j]/dt   = 1(i=j) A_i - lam B[i,j] - A_i sum_m K_im B[m,j]
    dz[i,j,m]/dt = -lam z[i,j,m] - A_i (1(i=j) s_m + 1(i=m) s_j + sum_k K_ik z[k,j,m])

with A_i = w_i (diag(p_i) - p_i p_i^T). The paper prints lam z inside A_i(...); differentiating the
flow puts it outside (docs/derivation.md). Once V = dLoss/dW(T) is known, the projections of
Algorithms 2 and 3 give the meta-gradients without any more integration:

    C[j]      = sum_i phi_i^T V^T B[i,j]          D[m,j] = sum_i z[i,j,m] . (V phi_i)
    dLoss/dW0    = V - C^T phi
    dLoss/dphi_m = -(s_m^T V + C_m W0 + D_m phi)
    dLoss/dT     = -<V, grad L_train(W(T))>       (Proposition 5)

The memory is O(M^2 N^2 + M^3 N) however many steps the solver takes. Derivatives in lam and in the
weights are those of the two linear systems they drive, carried along as two more blocks.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torchdiffeq import odeint

from comln_serve.flow import FlowError, effective_horizon
from comln_serve.flow.solve import check_problem

_EVALUATIONS_A_STEP = 6  # of dopri5


def forward_flow(
    phi: Tensor,
    W0: Tensor,
    Y: Tensor,
    w: Tensor,
    T: Tensor,
    lam: Tensor,
    *,
    rtol: float,
    atol: float,
    max_steps: int,
) -> Tensor:
    """W(T) (N, d) of one task: phi (M, d), W0 (N, d), Y (M, N), w (M,), T (), lam (); float64."""
    return _ForwardFlow.apply(phi, W0, Y, w, T, lam, rtol, atol, max_steps)


class _ForwardFlow(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        phi: Tensor,
        W0: Tensor,
        Y: Tensor,
        w: Tensor,
        T: Tensor,
        lam: Tensor,
        rtol: float,
        atol: float,
        max_steps: int,
    ) -> Tensor:
        K, L0 = phi @ phi.T, phi @ W0.T
        k, l0, y, weights = (x.detach().cpu().numpy() for x in (K, L0, Y, w))
        check_problem(k, l0, y, float(T), float(lam), weights, rtol, atol)
        system = SensitivitySystem(K, L0, Y, w, float(lam))
        horizon = effective_horizon(float(T), float(lam))
        s, B, z, r, q = system.solve(horizon, rtol, atol, max_steps)
        W = W0 - s.T @ phi
        ctx.at_rest = horizon < float(T)
        ctx.save_for_backward(phi, W0, Y, w, lam, W, s, B, z, r, q)
        return W

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        V = grads[0]
        phi, W0, Y, w, lam, W, s, B, z, r, q = ctx.saved_tensors
        Vphi = phi @ V.T  # (M, N): row i is V phi_i
        C = torch.einsum("ia,ijab->jb", Vphi, B)
        D = torch.einsum("ijma,ia->mj", z, Vphi)
        dW0 = V - C.T @ phi
        dphi = -(s @ V + C @ W0 + D @ phi)
        residual = w[:, None] * (torch.softmax(phi @ W.T, dim=1) - Y)
        gradient = residual.T @ phi + lam * (W - W0)
        dT = torch.zeros_like(lam) if ctx.at_rest else -(V * gradient).sum()
        # W(T) = W0 - s^T phi, so dLoss = -sum_i <V phi_i, ds_i>.
        dlam = -(Vphi * r).sum()
        dw = -torch.einsum("ia,iaj->j", Vphi, q)
        return dphi, dW0, None, dw, dT, dlam, None, None, None


class SensitivitySystem:
    """The right-hand side for (s, B, z) and two blocks more, r = ds/dlam and q = ds/dw.

    Args:
        K: (M, M) Gram matrix. L0: (M, N) logits at time 0. Y: (M, N) labels. w: (M,) weights.
        lam: regularisation. All float64, on one device.
    """

    def __init__(self, K: Tensor, L0: Tensor, Y: Tensor, w: Tensor, lam: float) -> None:
        self.K, self.L0, self.Y, self.w, self.lam = K, L0, Y, w, lam
        self.M, self.N = L0.shape

    def solve(self, T: float, rtol: float, atol: float, max_steps: int) -> tuple[Tensor, ...]:
        """Integrate all blocks from 0 to T with torchdiffeq's dopri5.

        The horizon is cut where the flow's own time scale doubles, and inside each piece the step
        is held to the stability limit of the Jacobian at the piece's start: error control alone
        lets the step grow to where the sensitivities are no longer damped.

        Returns:
            s (M, N), B (M, M, N, N), z (M, M, M, N), r (M, N), q (M, N, M) at T.
        """
        M, N = self.M, self.N
        shapes = ((M, N), (M, M, N, N), (M, M, M, N), (M, N), (M, N, M))
        state = tuple(self.L0.new_zeros(shape) for shape in shapes)
        amplification = float(self.K.abs().sum(dim=1).max().clamp_min(1e-300))
        # s carries units of logits over K; B the same (it multiplies L0), z once more.
        scales = (1.0, 1.0, 1.0 / amplification, 1.0, 1.0)
        atols = tuple(atol / amplification * scale for scale in scales)
        t, evaluations = 0.0, 0

        def field(time: Tensor, current: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            nonlocal evaluations
            evaluations += 1
            if evaluations > _EVALUATIONS_A_STEP * max_steps:
                raise FlowError(
                    f"the flow stopped at t = {float(time):.6g} of T = {T:.6g}: {max_steps} steps "
                    "were not enough. Use a shorter horizon, or raise max_steps"
                )
            return self._field(time, current)

        while t < T:
            limit = 3.0 / self._spectral_radius(state[0])
            # Over a piece no longer than half the time passed (or a few first steps), p and with
            # it the radius moves by less than the margin between 3 and the true limit, 3.3.
            end = min(T, t + max(limit, 0.5 * t))
            if T - end < 1e-9 * T:
                end = T
            times = torch.tensor([t, end], dtype=self.L0.dtype, device=self.L0.device)
            try:
                pieces = odeint(
                    field, state, times, method="dopri5", rtol=rtol,
                    atol=atols,  # pyright: ignore[reportArgumentType]
                    options={"norm": self._norm, "max_step": limit, "dtype": torch.float64},
                )  # fmt: skip
            except AssertionError as error:  # how torchdiffeq says underflow and non-finite
                raise FlowError(
                    f"the flow stopped near t = {t:.6g} of T = {T:.6g}: {error}. Loosen rtol and "
                    "atol, or scale the embeddings down"
                ) from error
            state = tuple(block[-1] for block in pieces)
            if not all(bool(torch.isfinite(block).all()) for block in state):
                raise FlowError(
                    f"the flow left the range of float64 near t = {end:.6g} of T = {T:.6g}. "
                    "Scale the embeddings down"
                )
            t = end
        return state

    def _field(self, _t: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        s, B, z, r, q = state
        M, N, K, lam = self.M, self.N, self.K, self.lam
        diagonal = torch.arange(M, device=K.device)
        p = torch.softmax(self.L0 - K @ s, dim=1)
        residual = p - self.Y

        def apply_A(x: Tensor) -> Tensor:
            """A_i x[i] along the class axis, axis 1 of x (M, N, ...)."""
            tail = (1,) * (x.ndim - 2)
            prob = p.reshape(M, N, *tail)
            return self.w.reshape(M, 1, *tail) * prob * (x - (prob * x).sum(1, keepdim=True))

        ds = self.w[:, None] * residual - lam * s

        # B[i, j] (N, N): bring its row class next to i.
        KB = (K @ B.reshape(M, -1)).reshape(M, M, N, N)
        inner = -KB
        inner[diagonal, diagonal] += torch.eye(N, dtype=K.dtype, device=K.device)
        dB = apply_A(inner.transpose(1, 2)).transpose(1, 2) - lam * B

        Kz = (K @ z.reshape(M, -1)).reshape(M, M, M, N)
        Kz[diagonal, diagonal] += s  # 1(i=j) s_m
        Kz[diagonal, :, diagonal] += s  # 1(i=m) s_j
        dz = -apply_A(Kz.permute(0, 3, 1, 2)).permute(0, 2, 3, 1) - lam * z

        dr = -apply_A(K @ r) - lam * r - s
        Kq = (K @ q.reshape(M, -1)).reshape(M, N, M)
        dq = -apply_A(Kq) - lam * q
        dq[diagonal, :, diagonal] += residual
        return ds, dB, dz, dr, dq

    @staticmethod
    def _norm(error: Any) -> Tensor:
        """Largest entry of any block: a mean over M^3 N entries of z would hide errors of s."""
        blocks = error if isinstance(error, tuple) else (error,)
        return torch.stack([block.abs().max() for block in blocks]).max()

    def _spectral_radius(self, s: Tensor) -> float:
        """Largest eigenvalue of A K + lam at state s, by power iterations."""
        p = torch.softmax(self.L0 - self.K @ s, dim=1)
        generator = torch.Generator().manual_seed(0)
        v = torch.rand(s.shape, generator=generator, dtype=s.dtype).to(s.device) - 0.5
        radius = torch.zeros((), dtype=s.dtype, device=s.device)
        for _ in range(12):
            Kv = self.K @ v
            image = self.w[:, None] * p * (Kv - (p * Kv).sum(1, keepdim=True))
            radius = image.norm() / v.norm()
            if float(radius) == 0.0:
                break
            v = image / image.norm()
        return max(float(radius) + self.lam, 1e-300)
