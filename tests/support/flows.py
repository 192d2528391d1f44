"""Flows to be solved, and what is known of each from its definition and from SciPy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import log_softmax, softmax

from comln_serve.flow import balanced_weights, solve_flow, uniform_weights
from training.gradient_flow.steps import ReducedProblem, Solver, march

TIGHT = {"rtol": 1e-11, "atol": 1e-11}


@dataclass(frozen=True)
class Problem:
    """One flow: phi (M, d), W0 (N, d), Y (M, N), T, lam, weights (M,)."""

    phi: np.ndarray
    W0: np.ndarray
    Y: np.ndarray
    T: float
    lam: float
    weights: np.ndarray

    def solve(self, **options: Any) -> np.ndarray:
        """W(T) by the code under test."""
        return solve_flow(self.phi, self.W0, self.Y, self.T, lam=self.lam, weights=self.weights, **(TIGHT | options)).W

    def reduced(self, chunk: int = 100_000, **tolerances: Any) -> tuple[np.ndarray, ...]:
        """s (M, N), and states (n, M, N) at the start of each step and steps (n, 6)."""
        problem = ReducedProblem(
            self.phi @ self.phi.T,
            np.ascontiguousarray(self.W0 @ self.phi.T),
            np.ascontiguousarray(self.Y.T),
            self.weights,
            self.T,
            self.lam,
        )
        tolerances = TIGHT | tolerances
        solver = Solver("dopri5", max_steps=100_000, step_size=None, **tolerances)
        s, states, steps = (np.zeros_like(problem.L0), np.empty((0, *problem.L0.shape)), np.empty((0, 6)))
        for part in march(problem, solver, chunk):
            s, states = part.end, np.concatenate([states, part.states])
            steps = np.concatenate([steps, part.steps])
        return s.T, states.transpose(0, 2, 1), steps

    def gradient(self, W: np.ndarray) -> np.ndarray:
        """Gradient (N, d) of the regularised support loss, from its definition."""
        residual = self.weights[:, None] * (softmax(self.phi @ W.T, axis=1) - self.Y)
        return residual.T @ self.phi + self.lam * (W - self.W0)

    def loss(self, W: np.ndarray) -> float:
        """Regularised support loss."""
        cross_entropy = -(self.Y * log_softmax(self.phi @ W.T, axis=1)).sum(axis=1)
        return float(self.weights @ cross_entropy + self.lam / 2 * ((W - self.W0) ** 2).sum())

    def scipy(self) -> np.ndarray:
        """W(T) by SciPy's DOP853, integrating W itself."""
        solution = solve_ivp(
            lambda t, W: -self.gradient(W.reshape(self.W0.shape)).ravel(),
            (0.0, self.T),
            self.W0.ravel(),
            method="DOP853",
            rtol=1e-13,
            atol=1e-14,
        )
        assert solution.success
        return solution.y[:, -1].reshape(self.W0.shape)


def make_problem(
    M: int,
    N: int,
    d: int,
    T: float,
    lam: float = 0.0,
    *,
    seed: int = 0,
    soft: bool = False,
    weights: str = "uniform",
    scale: float = 1.0,
) -> Problem:
    """Random embeddings; classes drawn with replacement, so their counts differ."""
    rng = np.random.default_rng(seed)
    phi = scale * rng.normal(size=(M, d))
    W0 = rng.normal(size=(N, d)) / (scale * np.sqrt(d))
    classes = rng.integers(0, N, M)
    Y = rng.dirichlet(np.ones(N), M) if soft else np.eye(N)[classes]
    chosen = {
        "uniform": uniform_weights(M),
        "balanced": balanced_weights(classes, N),
        "random": rng.uniform(0.0, 0.4, M),
    }[weights]
    return Problem(phi, W0, Y, T, lam, chosen)


def close(actual: np.ndarray, expected: np.ndarray, tolerance: float = 1e-8) -> None:
    """Largest difference at most `tolerance` of the largest entry."""
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()
