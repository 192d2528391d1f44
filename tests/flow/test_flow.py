"""W(T) against the closed form and against SciPy, at any horizon."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq, minimize

from comln_serve.flow import effective_horizon, kernels, solve_flow
from tests.support.flows import TIGHT, close, make_problem


@pytest.mark.parametrize("T", [0.01, 1.0, 100.0, 1e4, 1e6])
@pytest.mark.parametrize("norm", [1e-2, 1.0, 1e2, 1e4])
@pytest.mark.parametrize("m0", [0.0, -3.0, 2.0])
@pytest.mark.parametrize("d", [1, 7])
@pytest.mark.parametrize(("options", "tolerance"), [({}, 1e-4), (TIGHT, 1e-8)])
def test_closed_form_of_one_example_and_two_classes(
    T: float, norm: float, m0: float, d: int, options: dict[str, float], tolerance: float
) -> None:
    """m + e^m = m0 + e^m0 + 2 ||phi||^2 T for the margin m of the true class."""
    rng = np.random.default_rng(1)
    phi = rng.normal(size=(1, d))
    phi *= norm / np.linalg.norm(phi)
    W0 = rng.normal(size=(1, d)) * np.ones((2, 1)) + m0 * np.array([[0.5], [-0.5]]) * phi / norm**2
    W = solve_flow(phi, W0, [[1.0, 0.0]], T, **options).W
    constant = m0 + np.exp(m0) + 2.0 * norm**2 * T
    upper = np.log(constant) if constant > 1.0 else constant
    expected = brentq(lambda m: m + np.exp(m) - constant, m0, upper + 1e-9, xtol=1e-13)
    assert (W[0] - W[1]) @ phi[0] == pytest.approx(expected, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("d", [1, 3, 8, 40])  # weights formulation while 2 d < M
@pytest.mark.parametrize(("M", "N"), [(1, 2), (6, 3), (13, 5), (20, 2), (37, 6)])  # the last: of every kind of tile
@pytest.mark.parametrize(
    ("T", "lam", "weights", "soft"),
    [
        (0.3, 0.0, "uniform", False),
        (30.0, 0.0, "uniform", False),
        (30.0, 0.0, "random", True),
        (10.0, 0.05, "balanced", False),
        (20.0, 2.0, "random", False),
    ],
)
def test_agrees_with_scipy(M: int, N: int, d: int, T: float, lam: float, weights: str, soft: bool) -> None:
    problem = make_problem(M, N, d, T, lam, weights=weights, soft=soft, seed=M + d)
    solution = solve_flow(problem.phi, problem.W0, problem.Y, T, lam=lam, weights=problem.weights, **TIGHT)
    close(solution.W, problem.scipy())


@pytest.mark.parametrize("largest", range(5))
def test_a_logit_whose_exponential_overflows_in_any_class(largest: int) -> None:
    problem = make_problem(6, 5, 8, 3.0)
    problem.phi[:, 0] = 1.0
    problem.W0[largest, 0] += 1000.0
    close(problem.solve() - problem.W0, problem.scipy() - problem.W0)


@pytest.mark.parametrize("d", [4, 16])
def test_agrees_with_scipy_at_default_tolerances(d: int) -> None:
    problem = make_problem(12, 4, d, 200.0, seed=5)
    close(problem.solve(rtol=1e-6, atol=1e-6), problem.scipy(), 1e-5)


@pytest.mark.parametrize(("T", "lam"), [(5.0, 0.0), (1e4, 0.0), (50.0, 0.1)])
def test_the_two_formulations_agree(T: float, lam: float) -> None:
    """Zero features added to a problem change nothing but the formulation."""
    problem = make_problem(12, 4, 5, T, lam, weights="random", scale=3.0)
    padding = [(0, 0), (0, 15)]
    wide = replace(problem, phi=np.pad(problem.phi, padding), W0=np.pad(problem.W0, padding))
    W = wide.solve()
    close(W[:, :5], problem.solve(), 1e-9)
    assert not W[:, 5:].any()


@pytest.mark.parametrize("knee", [1e-3, 2.0, np.inf])
def test_the_integrators_time_is_flow_time_before_the_knee(knee: float) -> None:
    for t in (0.0, 1e-6, 0.3, 1e8):
        tau = kernels.own_time(t, knee)
        assert kernels.flow_time(tau, knee) == pytest.approx(t, rel=1e-12)
    assert kernels.own_time(1e-6, knee) == pytest.approx(1e-6, rel=1e-3)
    assert kernels.pace(0.0, knee) == 1.0


@pytest.mark.parametrize(
    ("label", "weight", "lam", "rests"),
    [
        ((1.0, 0.0), 1.0, 0.0, False),
        ((1.0, 0.0), 1.0, 0.1, True),
        ((0.9, 0.1), 1.0, 0.0, True),
        ((1.0 - 1e-9, 1e-9), 1.0, 0.0, False),  # rounded
        ((0.9, 0.1), 0.0, 0.0, False),  # padding
    ],
)
def test_which_flows_are_known_to_come_to_rest(
    label: tuple[float, float], weight: float, lam: float, *, rests: bool
) -> None:
    Y = np.array([[0.0, 1.0], label]).T.copy()
    assert kernels.comes_to_rest(Y, np.array([1.0, weight]), lam) is rests


@pytest.mark.parametrize("T", [1e-320, 1e300, 1.7e308])
def test_any_finite_horizon_is_reached(T: float) -> None:
    problem = make_problem(4, 3, 5, 1.0)
    Y = np.eye(3)[[0, 1, 2, 0]]
    assert np.isfinite(solve_flow(problem.phi, problem.W0, Y, T).W).all()


def test_a_hundred_times_the_horizon_takes_few_steps_more() -> None:
    """The tail is a straight line in log t; steps in proportion to t would be eight a tenfold."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(5), 5)
    phi = rng.normal(size=(5, 40))[y] + 0.5 * rng.normal(size=(25, 40))

    def steps(T: float) -> int:
        return solve_flow(phi, np.zeros((5, 40)), np.eye(5)[y], T).accepted

    assert steps(1e6) - steps(1e4) <= 7
    assert steps(1e8) - steps(1e6) <= 7


@pytest.mark.parametrize("d", [4, 30])
@pytest.mark.parametrize("lam", [0.02, 0.1, 10.0])
def test_a_long_regularised_flow_ends_at_the_optimum_at_bounded_cost(d: int, lam: float) -> None:
    problem = make_problem(12, 3, d, 1e9, lam, weights="random", scale=2.0)
    W = problem.solve(rtol=1e-9, atol=1e-9)
    at_start = np.abs(problem.gradient(problem.W0)).max()
    assert np.abs(problem.gradient(W)).max() <= 1e-7 * at_start
    optimum = minimize(
        lambda x: (problem.loss(x.reshape(W.shape)), problem.gradient(x.reshape(W.shape)).ravel()),
        problem.W0.ravel(),
        jac=True,
        method="BFGS",
        options={"gtol": 1e-7},
    ).x
    close(W.ravel(), optimum, 1e-4)

    def steps(T: float) -> int:
        solution = solve_flow(problem.phi, problem.W0, problem.Y, T, lam=lam, weights=problem.weights)
        return solution.accepted + solution.rejected

    assert steps(1e12) == steps(1e6) < 10_000


@pytest.mark.parametrize(("T", "lam", "expected"), [(5.0, 0.0, 5.0), (5.0, 0.1, 5.0), (1e9, 0.1, 600.0)])
def test_effective_horizon(T: float, lam: float, expected: float) -> None:
    assert effective_horizon(T, lam) == pytest.approx(expected, rel=1e-15)
