"""Extreme and contradictory problems, invalid arguments, array layouts, threads."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from comln_serve.flow import FlowError, FlowSolution, kernels, solve_flow
from comln_serve.flow.kernels import integrate
from tests.support.flows import TIGHT, Problem, make_problem


@pytest.mark.parametrize("d", [3, 10])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("T", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_extremes_give_finite_values_or_a_flow_error(d: int, scale: float, T: float, lam: float) -> None:
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


@pytest.mark.parametrize("d", [3, 10])
def test_a_step_to_what_is_no_number_is_not_taken(d: int) -> None:
    """The stages overflow, and their differences are NaN, which a maximum ignores."""
    with pytest.raises(FlowError, match="the flow stopped at t = "):
        make_problem(6, 3, d, 1e12, scale=1e150).solve(max_steps=40)


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


def test_max_steps_counts_rejected_ones_and_the_last_of_them_is_taken() -> None:
    problem = replace(contradictory(), T=1000.0)

    def solve(max_steps: int) -> FlowSolution:
        return solve_flow(problem.phi, problem.W0, problem.Y, problem.T, weights=problem.weights, max_steps=max_steps)

    free = solve(200_000)
    assert free.rejected
    tried = free.accepted + free.rejected
    assert solve(tried).accepted == free.accepted
    with pytest.raises(FlowError, match="were not enough"):
        solve(tried - 1)


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
        rounded.phi.tolist(), rounded.W0.tolist(), problem.Y.tolist(), 10, weights=problem.weights.tolist(), **TIGHT
    )
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
