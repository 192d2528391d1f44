"""The flow against its closed form, SciPy, its own invariants, and bad input."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.optimize import brentq, minimize
from scipy.special import log_softmax, softmax

from comln_serve.flow import (
    FlowError,
    balanced_weights,
    effective_horizon,
    kernels,
    solve_flow,
    uniform_weights,
)
from comln_serve.flow.kernels import integrate
from comln_serve.flow.tableau import A, E
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
        return solve_flow(
            self.phi, self.W0, self.Y, self.T, lam=self.lam, weights=self.weights,
            **(TIGHT | options),
        ).W  # fmt: skip

    def reduced(self, chunk: int = 100_000, **tolerances: Any) -> tuple[np.ndarray, ...]:
        """s (M, N), and states (n, M, N) at the start of each step and steps (n, 6)."""
        problem = ReducedProblem(
            self.phi @ self.phi.T, np.ascontiguousarray(self.W0 @ self.phi.T),
            np.ascontiguousarray(self.Y.T), self.weights, self.T, self.lam,
        )  # fmt: skip
        tolerances = TIGHT | tolerances
        solver = Solver("dopri5", max_steps=100_000, step_size=None, **tolerances)
        s, states, steps = (
            np.zeros_like(problem.L0),
            np.empty((0, *problem.L0.shape)),
            np.empty((0, 6)),
        )
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
            (0.0, self.T), self.W0.ravel(), method="DOP853", rtol=1e-13, atol=1e-14,
        )  # fmt: skip
        assert solution.success
        return solution.y[:, -1].reshape(self.W0.shape)


def make_problem(
    M: int, N: int, d: int, T: float, lam: float = 0.0, *, seed: int = 0, soft: bool = False,
    weights: str = "uniform", scale: float = 1.0,
) -> Problem:  # fmt: skip
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


# Golden values


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


@pytest.mark.parametrize("d", [1, 3, 8, 40])  # weights formulation while d < M
@pytest.mark.parametrize(("M", "N"), [(1, 2), (6, 3), (13, 5), (20, 2)])
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
def test_agrees_with_scipy(
    M: int, N: int, d: int, T: float, lam: float, weights: str, soft: bool
) -> None:
    problem = make_problem(M, N, d, T, lam, weights=weights, soft=soft, seed=M + d)
    solution = solve_flow(
        problem.phi, problem.W0, problem.Y, T, lam=lam, weights=problem.weights, **TIGHT
    )
    assert solution.formulation == ("weights" if d < M else "reduced")
    close(solution.W, problem.scipy())


@pytest.mark.parametrize("d", [4, 16])
def test_agrees_with_scipy_at_default_tolerances(d: int) -> None:
    problem = make_problem(12, 4, d, 200.0, seed=5)
    close(problem.solve(rtol=1e-6, atol=1e-6), problem.scipy(), 1e-5)


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

    end, states, steps = problem.reduced(chunk)
    times = np.concatenate([[0.0], np.cumsum(steps @ A[-1, :6])])  # the solver's own quadrature
    assert times[-1] == pytest.approx(problem.T, rel=1e-11)
    times[-1] = problem.T
    reference = solve_ivp(
        field, (0.0, problem.T), np.zeros(18), method="DOP853", rtol=1e-13, atol=1e-14,
        t_eval=times,
    )  # fmt: skip
    close(np.concatenate([states, end[None]]).reshape(-1, 18), reference.y.T)


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


# Order and tolerance


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
    for values in (
        [np.abs(W - reference).max() for W, _ in runs],
        [estimate for _, estimate in runs],
    ):
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
        solve_flow(problem.phi, problem.W0, problem.Y, 5.0, rtol=10.0**-n, atol=10.0**-n)
        for n in digits.tolist()
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


# Invariants


@st.composite
def problems(draw: st.DrawFn, lam: st.SearchStrategy[float] | None = None) -> Problem:
    """Small flows of every kind; T and the embeddings' scale over decades."""
    if lam is None:
        lam = st.sampled_from([0.0, 1e-3, 0.3])
    return make_problem(
        draw(st.integers(1, 9)), draw(st.integers(2, 5)), draw(st.integers(1, 12)),
        10.0 ** draw(st.integers(-3, 3)), draw(lam), seed=draw(st.integers(0, 2**16)),
        soft=draw(st.booleans()), weights=draw(st.sampled_from(["uniform", "random"])),
        scale=draw(st.sampled_from([0.1, 1.0, 4.0])),
    )  # fmt: skip


no_lam = st.just(0.0)
examples = settings(max_examples=40, deadline=None, derandomize=True)


@examples
@given(problems())
def test_class_sum_of_s_is_zero_and_the_class_mean_of_w_never_moves(problem: Problem) -> None:
    s, _, _ = problem.reduced(rtol=1e-6, atol=1e-6)
    assert np.abs(s.sum(axis=1)).max() <= 1e-12 * max(np.abs(s).max(), 1.0)
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
def test_the_order_of_examples_does_not_matter_and_that_of_classes_follows(
    problem: Problem, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows, classes = (rng.permutation(size) for size in problem.Y.shape)
    shuffled = replace(
        problem, phi=problem.phi[rows], Y=problem.Y[rows][:, classes], W0=problem.W0[classes],
        weights=problem.weights[rows],
    )  # fmt: skip
    close(shuffled.solve(), problem.solve()[classes], 1e-9)
    close(shuffled.reduced()[0], problem.reduced()[0][rows][:, classes], 1e-8)


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
        problem, phi=np.vstack([problem.phi] * 2), Y=np.vstack([problem.Y] * 2),
        weights=np.tile(problem.weights / 2, 2),
    )  # fmt: skip
    close(doubled.solve(), problem.solve(), 1e-8)


@examples
@given(problems())
def test_time_zero_gives_the_start(problem: Problem) -> None:
    np.testing.assert_array_equal(replace(problem, T=0.0).solve(), problem.W0)


def test_time_zero_records_no_steps() -> None:
    """The adjoint would otherwise differentiate whatever memory held."""
    s, _, steps = make_problem(4, 3, 5, 0.0).reduced()
    assert not steps.size
    assert not s.any()


def test_default_weights_are_uniform() -> None:
    problem = make_problem(7, 3, 9, 5.0)
    close(solve_flow(problem.phi, problem.W0, problem.Y, 5.0, **TIGHT).W, problem.solve(), 1e-14)


def test_balanced_weights_give_every_class_the_same_total() -> None:
    classes = np.array([0, 0, 0, 1, 2, 2])
    weights = balanced_weights(classes, 3)
    np.testing.assert_allclose(weights, [1 / 9] * 3 + [1 / 3] + [1 / 6] * 2)


# Regularisation at long horizons


@pytest.mark.parametrize("d", [4, 30])
@pytest.mark.parametrize("lam", [0.02, 0.1, 10.0])
def test_a_long_regularised_flow_ends_at_the_optimum_at_bounded_cost(d: int, lam: float) -> None:
    problem = make_problem(12, 3, d, 1e9, lam, weights="random", scale=2.0)
    W = problem.solve(rtol=1e-9, atol=1e-9)
    at_start = np.abs(problem.gradient(problem.W0)).max()
    assert np.abs(problem.gradient(W)).max() <= 1e-7 * at_start
    optimum = minimize(
        lambda x: (
            problem.loss(x.reshape(W.shape)), problem.gradient(x.reshape(W.shape)).ravel()
        ),
        problem.W0.ravel(), jac=True, method="BFGS", options={"gtol": 1e-7},
    ).x  # fmt: skip
    close(W.ravel(), optimum, 1e-4)

    def steps(T: float) -> int:
        solution = solve_flow(
            problem.phi, problem.W0, problem.Y, T, lam=lam, weights=problem.weights
        )
        return solution.accepted + solution.rejected

    assert steps(1e12) == steps(1e6) < 10_000


@pytest.mark.parametrize(
    ("T", "lam", "expected"), [(5.0, 0.0, 5.0), (5.0, 0.1, 5.0), (1e9, 0.1, 600.0)]
)
def test_effective_horizon(T: float, lam: float, expected: float) -> None:
    assert effective_horizon(T, lam) == pytest.approx(expected, rel=1e-15)


def test_a_separable_flow_costs_few_more_steps_at_a_long_horizon() -> None:
    """Accepted steps grow like log T (design: the flow slows like 1 / t)."""
    problem = make_problem(10, 5, 100, 1.0)
    steps = [
        solve_flow(problem.phi, problem.W0, problem.Y, T).accepted for T in (1e2, 1e4, 1e6, 1e8)
    ]
    assert max(later - earlier for earlier, later in pairwise(steps)) <= 40
    assert steps[-1] <= 150


# Limits of what can be solved


@pytest.mark.parametrize("d", [3, 10])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("T", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_extremes_give_finite_values_or_a_flow_error(
    d: int, scale: float, T: float, lam: float
) -> None:
    problem = make_problem(6, 3, d, T, lam, scale=scale)
    try:
        W = problem.solve(rtol=1e-6, atol=1e-6)
    except FlowError as error:
        assert scale * T > 1e6, "only the stiffest may fail"
        assert re.search(r"shorter horizon|Loosen|Scale", str(error))  # noqa: PT017
    else:
        assert np.isfinite(W).all()
        unregularised = replace(problem, lam=0.0)  # atol bounds errors of logits, not those of W
        assert unregularised.loss(W) <= unregularised.loss(problem.W0) + 1e-5


@pytest.mark.parametrize("d", [3, 10])
def test_products_beyond_float64_are_refused(d: int) -> None:
    problem = make_problem(6, 3, d, 1.0, scale=1e200)
    with pytest.raises((ValueError, FlowError), match=r"too large|Scale|Loosen"):
        problem.solve()


def contradictory() -> Problem:
    """The same image under two labels: the flow has a finite limit and stays stiff."""
    problem = make_problem(6, 3, 10, 1.0)
    problem.phi[1] = problem.phi[0]
    return replace(problem, Y=np.eye(3)[[0, 1, 2, 0, 1, 2]])


def test_contradictory_labels_solve_and_split_the_probability() -> None:
    problem = replace(contradictory(), T=1000.0)
    p = softmax(problem.phi @ problem.solve(rtol=1e-6, atol=1e-6).T, axis=1)
    np.testing.assert_allclose(p[0], [0.5, 0.5, 0.0], atol=0.05)


def test_contradictory_labels_at_a_long_horizon_are_told_apart() -> None:
    with pytest.raises(FlowError, match=r"of T = 1e\+06.*equal images under different labels"):
        replace(contradictory(), T=1e6).solve(max_steps=2000)


@pytest.mark.parametrize("d", [4, 30])
def test_max_steps_exhausted(d: int) -> None:
    problem = make_problem(12, 3, d, 100.0)
    with pytest.raises(FlowError, match=r"3 steps were not enough.*raise max_steps"):
        problem.solve(max_steps=3)


# Input


NAN, INF = float("nan"), float("inf")


def spoil(array: np.ndarray, value: float) -> np.ndarray:
    array = array.copy()
    array.flat[0] = value
    return array


INVALID: list[tuple[str, Callable[[Problem], dict[str, Any]]]] = [
    *[
        (name, lambda p, name=name, value=value: {name: spoil(getattr(p, name), value)})
        for name in ("phi", "W0", "Y", "weights")
        for value in (NAN, INF)
    ],
    *[("T", lambda p, value=value: {"T": value}) for value in (NAN, INF, -1.0)],
    *[("lam", lambda p, value=value: {"lam": value}) for value in (NAN, INF, -1.0)],
    *[
        (name, lambda p, name=name, value=value: {name: value})
        for name in ("rtol", "atol")
        for value in (NAN, -1e-6, 0.0, 9e-13, 1.0)
    ],
    ("weights", lambda p: {"weights": spoil(p.weights, -1.0)}),
    ("weights", lambda p: {"weights": p.weights[:-1]}),
    ("weights", lambda p: {"weights": p.weights[:, None]}),
    ("phi", lambda p: {"phi": p.phi[0]}),
    ("phi", lambda p: {"phi": p.phi[None]}),
    ("phi", lambda p: {"phi": p.phi[:0]}),
    ("phi", lambda p: {"phi": p.phi[:, :0], "W0": p.W0[:, :0]}),
    ("phi", lambda p: {"phi": p.phi[:-1]}),
    ("W0", lambda p: {"W0": p.W0[:, :-1]}),
    ("W0", lambda p: {"W0": p.W0[:-1]}),
    ("W0", lambda p: {"W0": p.W0[:0]}),
    ("Y", lambda p: {"Y": p.Y[:, :-1]}),
    ("Y", lambda p: {"Y": p.Y[:, 0]}),
    ("Y", lambda p: {"Y": 2 * p.Y}),
    ("Y", lambda p: {"Y": p.Y - 0.5 * np.array([1.0, -1.0, 0.0])}),
    ("Y", lambda p: {"Y": p.Y[:, :1] ** 0, "W0": p.W0[:1]}),
]


@pytest.mark.parametrize(("name", "change"), INVALID)
def test_invalid_input_is_named(name: str, change: Callable[[Problem], dict[str, Any]]) -> None:
    problem = make_problem(6, 3, 8, 1.0)
    arguments = vars(problem) | change(problem)
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        solve_flow(**arguments)


@pytest.mark.parametrize("d", [4, 20])
def test_any_layout_and_dtype_of_the_input_and_none_is_modified(d: int) -> None:
    """Read-only, strided, Fortran-ordered and float32 arrays and lists give the same W(T)."""
    problem = make_problem(12, 3, d, 10.0, weights="random")
    rounded = replace(
        problem, phi=problem.phi.astype(np.float32), W0=problem.W0.astype(np.float32)
    )  # what float32 can hold, so that only the dtype differs below
    wide = replace(rounded, phi=rounded.phi.astype(np.float64), W0=rounded.W0.astype(np.float64))
    expected = wide.solve()
    assert rounded.solve().dtype == np.float64
    layouts: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "float32": lambda x: x,
        "Fortran": np.asfortranarray,
        "strided": lambda x: np.repeat(x, 2, axis=0)[::2],
        "reversed": lambda x: x[::-1].copy()[::-1],
    }
    for layout in layouts.values():
        inputs = {n: layout(getattr(rounded, n)) for n in ("phi", "W0", "Y", "weights")}
        before = {name: array.copy() for name, array in inputs.items()}
        for array in inputs.values():
            array.flags.writeable = False
        np.testing.assert_array_equal(replace(rounded, **inputs).solve(), expected)
        for name, array in before.items():
            np.testing.assert_array_equal(inputs[name], array)
    listed = solve_flow(
        rounded.phi.tolist(), rounded.W0.tolist(), problem.Y.tolist(), 10,
        weights=problem.weights.tolist(), **TIGHT,
    )  # fmt: skip
    np.testing.assert_array_equal(listed.W, expected)


def test_writeable_inputs_are_not_modified() -> None:
    """Read-only arrays are copied by the solver; these it works on in place of copies."""
    for d in (4, 20):
        problem = make_problem(12, 3, d, 10.0, 0.1, weights="random")
        before = {name: np.copy(value) for name, value in vars(problem).items()}
        problem.solve()
        for name, value in vars(problem).items():
            np.testing.assert_array_equal(value, before[name])


def test_read_only_inputs_compile_nothing_new() -> None:
    """A kernel compiled again for read-only arrays would cost the first caller seconds."""
    problem = make_problem(12, 3, 4, 1.0)
    problem.solve()
    compiled = len(integrate.signatures)
    for array in (problem.phi, problem.W0, problem.Y, problem.weights):
        array.flags.writeable = False
    problem.solve()
    assert len(integrate.signatures) == compiled


def test_threads_do_not_share_state() -> None:
    """Eight threads give bit for bit what one gives."""
    tasks = [make_problem(5 + i % 7, 2 + i % 4, 3 + i % 11, 50.0, seed=i) for i in range(64)]
    serial = [task.solve() for task in tasks]
    with ThreadPoolExecutor(8) as pool:
        parallel = list(pool.map(Problem.solve, tasks * 4))
    for got, expected in zip(parallel, serial * 4, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_the_kernels_own_exponential() -> None:
    """Against NumPy's, over the whole range, to 2 units in the last place."""
    rng = np.random.default_rng(0)
    x = -(10.0 ** rng.uniform(-18, np.log10(708.0), 200_000))
    x[:3] = [0.0, -708.0, -np.log(2.0) / 2]
    found = x.copy()
    kernels.exp_of_negatives(found, np.empty((2, found.size)))
    expected = np.exp(x)
    assert found[0] == 1.0
    assert (np.abs(found - expected) / np.spacing(expected)).max() <= 2.0
    beyond = np.array([-709.0, -1e6, -np.inf, np.nan])
    kernels.exp_of_negatives(beyond, np.empty((2, beyond.size)))
    np.testing.assert_array_equal(beyond[:3], np.full(3, found[1]))
    assert np.isnan(beyond[3])


def test_another_thread_can_cancel_a_solve() -> None:
    """Equal examples under different labels, a horizon no explicit method reaches."""
    phi, Y = np.full((2, 2), 30.0), np.eye(2)
    cancel = np.zeros(1, dtype=np.bool_)
    timer = threading.Timer(0.2, cancel.fill, (True,))
    timer.start()
    with pytest.raises(FlowError, match="cancelled"):
        solve_flow(phi, np.zeros((2, 2)), Y, 1e12, max_steps=10**12, cancel=cancel)
    timer.join()
