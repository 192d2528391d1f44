"""What docs/derivation.md states about other ways to differentiate the flow."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor, nn
from torchdiffeq import odeint_adjoint

from benchmarks.gradient_error import Task, clustered_task, directional_derivative, start_gradient
from tests.support.numerics import METHODS, close, small_task


def test_without_the_step_limit_the_gradient_is_noise() -> None:
    """With steps chosen for s alone, the derivatives of modes that have decayed are not damped."""
    task = clustered_task(5, 5, 1e4, offset=10.0)
    free, free_steps = start_gradient(task, 1e-5, step_limit=False)
    limited, limited_steps = start_gradient(task, 1e-5, step_limit=True)
    v = limited / np.linalg.norm(limited)
    expected = directional_derivative(task, "W0", v)
    assert float((limited * v).sum()) == pytest.approx(expected, rel=1e-6)
    assert np.linalg.norm(free - limited) > np.linalg.norm(limited)
    assert limited_steps <= 1.2 * free_steps


class _Flow(nn.Module):
    """The flow for torchdiffeq's adjoint: a module whose parameters are differentiated."""

    def __init__(self, task: Task, space: str) -> None:
        super().__init__()
        self.W0 = nn.Parameter(torch.tensor(task.W0))
        self.phi, self.Y = torch.from_numpy(task.phi), torch.from_numpy(task.Y)
        self.weights, self.space = torch.from_numpy(task.weights), space

    def forward(self, _t: Tensor, state: Tensor) -> Tensor:
        W = state if self.space == "W" else self.W0 - state.T @ self.phi
        residual = self.weights[:, None] * (torch.softmax(self.phi @ W.T, dim=1) - self.Y)
        return -residual.T @ self.phi if self.space == "W" else residual


@pytest.mark.parametrize("space", ["s", "W"])
def test_the_adjoint_that_rebuilds_the_state_backward_is_wrong(space: str) -> None:
    """The paper's Figure 2: backward in time the state ascends the loss. Our adjoint stores the state."""
    task = clustered_task(5, 5, 1e4, norm2=1e3, offset=0.0, d=32)
    flow = _Flow(task, space)
    initial = flow.W0 if space == "W" else torch.zeros(25, 5, dtype=torch.float64)
    path: Any = odeint_adjoint(
        flow, initial, torch.tensor([0.0, task.T], dtype=torch.float64), method="dopri5", rtol=1e-8, atol=1e-8
    )
    W = path[-1] if space == "W" else flow.W0 - path[-1].T @ flow.phi
    (W * torch.from_numpy(task.V)).sum().backward()
    assert flow.W0.grad is not None
    theirs, ours = flow.W0.grad.numpy(), task.gradients("adjoint")["W0"]
    v = ours / np.linalg.norm(ours)
    expected = directional_derivative(task, "W0", v)
    assert float((ours * v).sum()) == pytest.approx(expected, rel=1e-6)
    assert np.linalg.norm(theirs - ours) > 0.1 * np.linalg.norm(ours)


def dense_phi_gradient(task: Task, *, lam_inside: bool, steps: int = 400) -> np.ndarray:
    """dL/dphi by the (s, B, z) system in plain einsum and equal steps.

    `lam_inside` puts lam z inside A_i(...), as the paper prints it.
    """
    phi, W0, Y, w, lam = task.phi, task.W0, task.Y, task.weights, task.lam
    (M, N), K, L0, same = Y.shape, phi @ phi.T, phi @ W0.T, np.eye(len(Y))
    inside, outside = (lam, 0.0) if lam_inside else (0.0, lam)

    def field(state: list[np.ndarray]) -> list[np.ndarray]:
        s, B, z = state
        p = softmax(L0 - K @ s, axis=1)
        A = w[:, None, None] * (np.eye(N) * p[:, :, None] - p[:, :, None] * p[:, None, :])
        ds = w[:, None] * (p - Y) - lam * s
        KB = np.einsum("im,mjbc->ijbc", K, B)
        dB = np.einsum("ij,iac->ijac", same, A) - lam * B - np.einsum("iab,ijbc->ijac", A, KB)
        inner = np.einsum("ij,ma->ijma", same, s) + np.einsum("im,ja->ijma", same, s)
        inner += np.einsum("ik,kjma->ijma", K, z) + inside * z
        return [ds, dB, -outside * z - np.einsum("iab,ijmb->ijma", A, inner)]

    state = [np.zeros((M, N)), np.zeros((M, M, N, N)), np.zeros((M, M, M, N))]
    h = task.T / steps
    for _ in range(steps):
        k1 = field(state)
        k2 = field([x + h / 2 * k for x, k in zip(state, k1, strict=True)])
        k3 = field([x + h / 2 * k for x, k in zip(state, k2, strict=True)])
        k4 = field([x + h * k for x, k in zip(state, k3, strict=True)])
        state = [x + h / 6 * (a + 2 * b + 2 * c + e) for x, a, b, c, e in zip(state, k1, k2, k3, k4, strict=True)]
    s, B, z = state
    Vphi = phi @ task.V.T
    C, D = np.einsum("ia,ijab->jb", Vphi, B), np.einsum("ijma,ia->mj", z, Vphi)
    return -(s @ task.V + C @ W0 + D @ phi)


@pytest.mark.parametrize(("lam", "T", "at_least"), [(0.01, 2.0, 1e-5), (1.0, 10.0, 0.02)])
def test_lambda_belongs_outside_the_printed_bracket(lam: float, T: float, at_least: float) -> None:
    """Finite differences agree with lam z outside A_i(...), not with the paper's lam z inside."""
    task = small_task(4, 3, 6, T, lam)
    v = np.random.default_rng(3).normal(size=task.phi.shape)
    expected = directional_derivative(task, "phi", v)
    right, printed = (float((dense_phi_gradient(task, lam_inside=inside) * v).sum()) for inside in (False, True))
    assert right == pytest.approx(expected, rel=1e-7)
    assert abs(printed - expected) > at_least * abs(expected)
    for method in METHODS:
        close(task.gradients(method)["phi"], dense_phi_gradient(task, lam_inside=False), 1e-6)
