"""The order of the integrator, and its error at a tolerance."""

from itertools import pairwise

import numpy as np
import pytest

from comln_serve.flow import Integration, solve_flow
from comln_serve.flow.tableau import A, E
from tests.support.flows import Problem, make_problem


def fixed_steps(problem: Problem, steps: int) -> tuple[np.ndarray, float]:
    """W(T) by `steps` equal steps through the tableau, and the first local error estimate."""
    h, W, estimate = problem.T / steps, problem.W0, 0.0
    for step in range(steps):
        k: list[np.ndarray] = []
        for row in A:
            k.append(-problem.gradient(W + h * sum(a * x for a, x in zip(row, k, strict=False))))
        if step == 0:
            estimate = float(np.abs(h * sum(e * x for e, x in zip(E, k, strict=True))).max())
        W = W + h * sum(a * x for a, x in zip(A[6], k, strict=True))
    return W, estimate


def test_the_tableau_has_observed_order_five() -> None:
    """Error of equal steps against SciPy: slope 5; local error estimate (b5 - b4): slope 5."""
    problem = make_problem(6, 3, 4, 3.0, 0.3, seed=4)
    reference = problem.scipy()
    counts = np.array([18, 27, 40, 60])
    runs = [fixed_steps(problem, int(n)) for n in counts]
    for values in ([np.abs(W - reference).max() for W, _ in runs], [estimate for _, estimate in runs]):
        assert -np.polyfit(np.log(counts), np.log(values), 1)[0] == pytest.approx(5.0, abs=0.2)


@pytest.mark.parametrize("d", [4, 30])
def test_the_solver_has_observed_order_five(d: int) -> None:
    """The error is proportional to the tolerance, and steps grow as tolerance^(-1/5).

    Each is measured where it is asymptotic: errors above SciPy's own, steps where accuracy and
    not stability decides their length.
    """
    problem = make_problem(12, 3, d, 5.0, seed=3)
    reference = problem.scipy()
    digits = np.arange(6, 13)
    solutions = [
        solve_flow(problem.phi, problem.W0, problem.Y, 5.0, rtol=10.0**-n, atol=10.0**-n) for n in digits.tolist()
    ]
    errors = [np.abs(solution.W - reference).max() for solution in solutions[:5]]
    assert all(tight < loose for loose, tight in pairwise(errors))
    assert -np.polyfit(digits[:5], np.log10(errors), 1)[0] == pytest.approx(1.0, abs=0.15)
    growth = np.polyfit(digits[4:], np.log10([s.accepted for s in solutions[4:]]), 1)[0]
    assert 1.0 / growth == pytest.approx(5.0, abs=0.2)


@pytest.mark.parametrize(("rtol", "atol"), [(1e-4, 1e-4), (1e-6, 1e-6), (1e-9, 1e-9)])
def test_the_error_of_the_logits_is_of_the_size_of_the_tolerance(rtol: float, atol: float) -> None:
    """Also where the Gram matrix multiplies errors of s by thousands."""
    problem = make_problem(10, 5, 200, 1000.0, scale=5.0)
    reference = problem.solve(rtol=1e-12, atol=1e-12)
    logits, expected = (problem.phi @ W.T for W in (problem.solve(rtol=rtol, atol=atol), reference))
    assert np.abs(logits - expected).max() <= 20 * (atol + rtol * np.abs(expected).max())


@pytest.mark.parametrize(("T", "lam"), [(30.0, 0.0), (30.0, 0.1), (1000.0, 0.0)])
def test_states_inside_the_steps_are_as_accurate_as_those_at_their_ends(T: float, lam: float) -> None:
    """150 marks in 20 to 40 steps. An interpolation of order 3 is wrong by over 20 times the tolerance."""
    problem = make_problem(12, 4, 30, T, lam, seed=2)
    K, tolerance = problem.phi @ problem.phi.T, 1e-6

    def logits(tolerance: float) -> np.ndarray:
        flow = Integration(
            K,
            np.empty((0, 0)),
            np.ascontiguousarray(problem.W0 @ problem.phi.T),
            np.ascontiguousarray(problem.Y.T),
            problem.weights,
            T,
            lam,
            rtol=tolerance,
            atol=tolerance,
            max_steps=10_000,
            limit_steps=False,
            marks=np.geomspace(T / 1e4, T, 150),
        )
        flow.advance()
        return flow.marked @ K

    assert np.abs(logits(tolerance) - logits(1e-11)).max() <= 10 * tolerance
