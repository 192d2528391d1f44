"""Flows to be solved, and what is known of each from its definition and from SciPy."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.special import log_softmax, softmax

from comln_serve.flow import balanced_weights, solve_flow, uniform_weights

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

    def reordered(self, seed: int) -> tuple["Problem", np.ndarray, np.ndarray]:
        """The same flow with examples and classes in another order, and the two permutations."""
        rng = np.random.default_rng(seed)
        rows, classes = (rng.permutation(size) for size in self.Y.shape)
        flow = replace(
            self, phi=self.phi[rows], Y=self.Y[rows][:, classes], W0=self.W0[classes], weights=self.weights[rows]
        )
        return flow, rows, classes

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


@st.composite
def problems(draw: st.DrawFn, lam: st.SearchStrategy[float] | None = None) -> Problem:
    """Small flows of every kind; T and the embeddings' scale over decades."""
    if lam is None:
        lam = st.sampled_from([0.0, 1e-3, 0.3])
    return make_problem(
        draw(st.integers(1, 9)),
        draw(st.integers(2, 5)),
        draw(st.integers(1, 12)),
        10.0 ** draw(st.integers(-3, 3)),
        draw(lam),
        seed=draw(st.integers(0, 2**16)),
        soft=draw(st.booleans()),
        weights=draw(st.sampled_from(["uniform", "random"])),
        scale=draw(st.sampled_from([0.1, 1.0, 4.0])),
    )


examples = settings(max_examples=40, deadline=None, derandomize=True)
