"""Properties of every flow: conserved sums, symmetries, weights."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from comln_serve.flow import balanced_weights, solve_flow
from tests.support.flows import TIGHT, Problem, close, examples, make_problem, problems

no_lam = st.just(0.0)


@examples
@given(problems())
def test_the_class_mean_of_w_never_moves(problem: Problem) -> None:
    W = problem.solve()
    drift = (W - problem.W0).mean(axis=0)
    assert np.abs(drift).max() <= 1e-12 * max(np.abs(W).max(), 1.0)


@examples
@given(problems())
def test_w_moves_in_the_row_span_of_phi(problem: Problem) -> None:
    change = problem.solve() - problem.W0
    coefficients = np.linalg.lstsq(problem.phi.T, change.T)[0]
    assert np.abs(problem.phi.T @ coefficients - change.T).max() <= 1e-10 * np.abs(change).max()


@examples
@given(problems())
def test_the_support_loss_never_rises(problem: Problem) -> None:
    times = [0.0, problem.T / 10, problem.T / 2, problem.T, 2 * problem.T]
    losses = [problem.loss(replace(problem, T=T).solve()) for T in times]
    slack = 1e-9 * max(1.0, losses[0])
    assert all(later <= earlier + slack for earlier, later in pairwise(losses))
    assert losses[-1] < losses[0]


@examples
@given(problems(), st.integers(0, 2**16))
def test_the_order_of_examples_does_not_matter_and_that_of_classes_follows(problem: Problem, seed: int) -> None:
    shuffled, _, classes = problem.reordered(seed)
    close(shuffled.solve(), problem.solve()[classes], 1e-9)


@examples
@given(problems(no_lam), st.floats(0.01, 0.99))
def test_two_flows_in_a_row_are_one(problem: Problem, share: float) -> None:
    half_way = replace(problem, T=share * problem.T).solve()
    rest = replace(problem, W0=half_way, T=(1 - share) * problem.T)
    close(rest.solve(), problem.solve(), 1e-8)


@examples
@given(problems(), st.integers(0, 2**16))
def test_weight_zero_removes_an_example(problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    padded = replace(
        problem,
        phi=np.vstack([problem.phi, rng.normal(size=(2, problem.phi.shape[1]))]),
        Y=np.vstack([problem.Y, np.eye(problem.Y.shape[1])[:2]]),
        weights=np.append(problem.weights, [0.0, 0.0]),
    )
    close(padded.solve(), problem.solve(), 1e-9)


@examples
@given(problems())
def test_an_example_given_twice_at_half_weight_counts_once(problem: Problem) -> None:
    doubled = replace(
        problem, phi=np.vstack([problem.phi] * 2), Y=np.vstack([problem.Y] * 2), weights=np.tile(problem.weights / 2, 2)
    )
    close(doubled.solve(), problem.solve(), 1e-8)


@examples
@given(problems())
def test_time_zero_gives_the_start(problem: Problem) -> None:
    np.testing.assert_array_equal(replace(problem, T=0.0).solve(), problem.W0)


def test_default_weights_are_uniform() -> None:
    problem = make_problem(7, 3, 9, 5.0)
    close(solve_flow(problem.phi, problem.W0, problem.Y, 5.0, **TIGHT).W, problem.solve(), 1e-14)


def test_balanced_weights_give_every_class_the_same_total() -> None:
    classes = np.array([0, 0, 0, 1, 2, 2])
    weights = balanced_weights(classes, 3)
    np.testing.assert_allclose(weights, [1 / 9] * 3 + [1 / 3] + [1 / 6] * 2)
