"""The reduced flow whose steps the trainer records, against SciPy; and what holds for every such flow."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.special import softmax

from comln_serve.flow.tableau import A
from tests.support.flows import TIGHT, Problem, close, examples, make_problem, problems
from training.flow_steps import ReducedProblem, Solver, march


def reduced(flow: Problem, chunk: int = 100_000, **tolerances: Any) -> tuple[np.ndarray, ...]:
    """s (M, N), and states (n, M, N) at the start of each step and steps (n, 6)."""
    problem = ReducedProblem(
        flow.phi @ flow.phi.T,
        np.ascontiguousarray(flow.W0 @ flow.phi.T),
        np.ascontiguousarray(flow.Y.T),
        flow.weights,
        flow.T,
        flow.lam,
    )
    tolerances = TIGHT | tolerances
    solver = Solver("dopri5", max_steps=100_000, step_size=None, **tolerances)
    s, states, steps = (np.zeros_like(problem.L0), np.empty((0, *problem.L0.shape)), np.empty((0, 6)))
    for part in march(problem, solver, chunk):
        s, states = part.end, np.concatenate([states, part.states])
        steps = np.concatenate([steps, part.steps])
    return s.T, states.transpose(0, 2, 1), steps


@pytest.mark.parametrize("lam", [0.0, 0.02])
@pytest.mark.parametrize("chunk", [1, 7, 100_000])
def test_the_reduced_trajectory_agrees_with_scipy(chunk: int, lam: float) -> None:
    """s(T), and the state at every recorded step, also when taken a few steps at a time."""
    problem = make_problem(6, 3, 10, 25.0, lam, weights="random")
    K, L0 = problem.phi @ problem.phi.T, problem.phi @ problem.W0.T

    def field(t: float, s: np.ndarray) -> np.ndarray:
        s = s.reshape(6, 3)
        p = softmax(L0 - K @ s, axis=1)
        return (problem.weights[:, None] * (p - problem.Y) - problem.lam * s).ravel()

    end, states, steps = reduced(problem, chunk)
    times = np.concatenate([[0.0], np.cumsum(steps @ A[-1, :6])])  # the solver's own quadrature
    assert times[-1] == pytest.approx(problem.T, rel=1e-11)
    times[-1] = problem.T
    reference = solve_ivp(field, (0.0, problem.T), np.zeros(18), method="DOP853", rtol=1e-13, atol=1e-14, t_eval=times)
    close(np.concatenate([states, end[None]]).reshape(-1, 18), reference.y.T)


@examples
@given(problems())
def test_the_class_sum_of_s_is_zero(problem: Problem) -> None:
    s, _, _ = reduced(problem, rtol=1e-6, atol=1e-6)
    assert np.abs(s.sum(axis=1)).max() <= 1e-12 * max(np.abs(s).max(), 1.0)


@examples
@given(problems(), st.integers(0, 2**16))
def test_s_follows_the_order_of_examples_and_of_classes(problem: Problem, seed: int) -> None:
    shuffled, rows, classes = problem.reordered(seed)
    close(reduced(shuffled)[0], reduced(problem)[0][rows][:, classes], 1e-8)


def test_time_zero_records_no_steps() -> None:
    """The adjoint would otherwise differentiate whatever memory held."""
    s, _, steps = reduced(make_problem(4, 3, 5, 0.0))
    assert not steps.size
    assert not s.any()
