"""The whitening metric of the flow, against SciPy on its definition."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from comln_serve.flow import balanced_weights, solve_flow
from comln_serve.flow.metric import whitened
from tests.support.flows import TIGHT, Problem, make_problem


def preconditioner(problem: Problem, strength: float) -> np.ndarray:
    """P (d, d) from its definition."""
    D = np.count_nonzero(problem.weights) * problem.weights
    d = problem.phi.shape[1]
    return np.linalg.inv(np.eye(d) + strength * (problem.phi.T * D) @ problem.phi)


@pytest.mark.parametrize("d", [3, 30], ids=["weights", "reduced"])
@pytest.mark.parametrize("strength", [0.01, 1.0, 100.0])
def test_the_flow_is_that_of_the_preconditioned_gradient(d: int, strength: float) -> None:
    problem = make_problem(9, 3, d, 40.0, 0.0, seed=1)
    P = preconditioner(problem, strength)

    def rate(_: float, flat: np.ndarray) -> np.ndarray:
        return -(problem.gradient(flat.reshape(problem.W0.shape)) @ P).ravel()

    reference = solve_ivp(rate, (0.0, problem.T), problem.W0.ravel(), method="DOP853", rtol=1e-11, atol=1e-12).y[:, -1]
    found = problem.solve(whitening=strength)
    np.testing.assert_allclose(found.ravel(), reference, atol=1e-8)


@pytest.mark.parametrize("shape", [(8, 3), (3, 8)])
def test_both_forms_of_the_metric_agree(shape: tuple[int, int]) -> None:
    phi = np.random.default_rng(0).normal(size=shape)
    weights = np.full(shape[0], 1.0 / shape[0])
    P = np.linalg.inv(np.eye(shape[1]) + 0.3 * phi.T @ phi)
    np.testing.assert_allclose(whitened(phi, weights, 0.3), phi @ P, atol=1e-12)


def test_a_short_flow_from_zero_is_ridge_regression() -> None:
    """For T -> 0, W(T) / T is least squares with penalty 1 / r to centred one-hot targets."""
    rng = np.random.default_rng(2)
    classes = np.arange(12) % 3
    phi, Y = rng.normal(size=(12, 20)), np.eye(3)[classes]
    T, strength = 1e-6, 5.0
    W = solve_flow(phi, np.zeros((3, 20)), Y, T, weights=balanced_weights(classes, 3), whitening=strength, **TIGHT).W
    ridge = (Y - 1 / 3).T @ np.linalg.solve(phi @ phi.T + np.eye(12) / strength, phi)
    np.testing.assert_allclose(W / np.linalg.norm(W), ridge / np.linalg.norm(ridge), atol=1e-6)


@pytest.mark.parametrize("d", [2, 9], ids=["weights", "reduced"])
def test_examples_without_weight_have_no_part_in_the_metric(d: int) -> None:
    rng = np.random.default_rng(3)
    phi, Y = rng.normal(size=(7, d)), np.eye(3)[np.array([0, 1, 2, 0, 1, 2, 0])]
    W0, weights = np.zeros((3, d)), np.array([1, 1, 1, 1, 1, 1, 0]) / 6
    whole = solve_flow(phi, W0, Y, 9.0, weights=weights, whitening=4.0, **TIGHT).W
    without = solve_flow(phi[:6], W0, Y[:6], 9.0, weights=weights[:6], whitening=4.0, **TIGHT).W
    np.testing.assert_allclose(whole, without, atol=1e-8)


@pytest.mark.parametrize("strength", [-1.0, np.inf, np.nan])
def test_strengths_that_make_no_metric_are_refused(strength: float) -> None:
    with pytest.raises(ValueError, match="whitening"):
        make_problem(4, 2, 5, 1.0, 0.0).solve(whitening=strength)
