"""Symmetries of the flow, which its meta-gradients must have, on random problems of every kind."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.gradient_error import INPUTS, Task
from tests.support.numerics import METHODS, TIGHT
from training.gradient_flow import Method

examples = settings(max_examples=30, deadline=None, derandomize=True)
methods = st.sampled_from(METHODS)
seeds = st.integers(0, 2**16)


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    """Small tasks; T and the embeddings' scale over decades, hard and soft labels."""
    rng = np.random.default_rng(draw(seeds))
    M, N, d = draw(st.integers(1, 6)), draw(st.integers(2, 4)), draw(st.integers(1, 8))
    scale = draw(st.sampled_from([0.1, 1.0, 4.0]))
    hard, soft = np.eye(N)[rng.integers(0, N, M)], rng.dirichlet(np.ones(N), M)
    return Task(
        phi=scale * rng.normal(size=(M, d)),
        W0=rng.normal(size=(N, d)) / (scale * np.sqrt(d)),
        Y=soft if draw(st.booleans()) else hard,
        T=10.0 ** draw(st.integers(-2, 3)),
        lam=draw(st.sampled_from([0.0, 1e-3, 0.3])),
        weights=rng.uniform(0.0, 0.4, M),
        V=rng.normal(size=(N, d)),
    )


def gradients(task: Task, method: Method) -> dict[str, np.ndarray]:
    return task.gradients(method, **TIGHT)


def sizes(task: Task, g: dict[str, np.ndarray]) -> dict[str, float]:
    """The scale of errors: a change of <V, W(T)> by a thousandth of |V| |W0| is small.

    A flow at rest depends on T by rounding alone, so T's unit is the flow's own time where that is shorter.
    """
    least = 1e-3 * np.linalg.norm(task.V) * np.linalg.norm(task.W0)
    fastest = task.lam + float(task.weights @ np.square(task.phi).sum(axis=1))
    units = {
        "phi": np.linalg.norm(task.phi),
        "W0": np.linalg.norm(task.W0),
        "T": min(task.T, 1.0 / fastest),
        "lam": max(task.lam, 1.0 / task.T),
        "weights": np.linalg.norm(task.weights),
    }
    return {name: max(float(np.linalg.norm(g[name])), float(least / units[name])) for name in units}


def equal(task: Task, actual: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float) -> None:
    """The gradients differ by at most `tolerance` of their size."""
    for name, size in sizes(task, expected).items():
        assert np.linalg.norm(actual[name] - expected[name]) <= tolerance * size, name


@examples
@given(tasks(), methods, seeds)
def test_examples_and_classes_may_come_in_any_order(task: Task, method: Method, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, classes = (rng.permutation(size) for size in task.Y.shape)
    shuffled = replace(
        task,
        phi=task.phi[rows],
        Y=task.Y[rows][:, classes],
        W0=task.W0[classes],
        weights=task.weights[rows],
        V=task.V[classes],
    )
    expected = gradients(task, method)
    for name, order in (("phi", rows), ("weights", rows), ("W0", classes)):
        expected[name] = expected[name][order]
    equal(shuffled, gradients(shuffled, method), expected, 1e-7)


@examples
@given(tasks(), methods, seeds)
def test_a_rotation_of_feature_space_rotates_the_gradients(task: Task, method: Method, seed: int) -> None:
    d = task.phi.shape[1]
    Q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))
    turned = replace(task, phi=task.phi @ Q, W0=task.W0 @ Q, V=task.V @ Q)
    expected = gradients(task, method)
    for name in ("phi", "W0"):
        expected[name] = expected[name] @ Q
    equal(turned, gradients(turned, method), expected, 1e-7)


@examples
@given(tasks(), methods)
def test_the_class_mean_of_w_has_only_the_trivial_gradient(task: Task, method: Method) -> None:
    """The class mean is constant: with equal rows of V, dW0 = V and all other gradients are zero."""
    task = replace(task, V=np.tile(task.V[:1], (len(task.V), 1)))
    trivial = {name: np.zeros_like(getattr(task, name)) for name in INPUTS} | {"W0": task.V}
    equal(task, gradients(task, method), trivial, 1e-9)


@examples
@given(tasks(), methods, seeds)
def test_a_constant_added_to_every_class_of_w0_changes_no_gradient(task: Task, method: Method, seed: int) -> None:
    """It does not change the softmax: phi W0^T changes by the same number for all classes."""
    shift = np.random.default_rng(seed).normal(size=task.W0.shape[1]) * np.abs(task.W0).max()
    moved = replace(task, W0=task.W0 + shift)
    equal(task, gradients(moved, method), gradients(task, method), 1e-7)


@examples
@given(tasks(), methods, seeds)
def test_the_gradient_is_linear_in_that_of_the_loss(task: Task, method: Method, seed: int) -> None:
    other = replace(task, V=np.random.default_rng(seed).normal(size=task.V.shape))
    both = replace(task, V=2.0 * task.V - 3.0 * other.V)
    one, two = gradients(task, method), gradients(other, method)
    combined = {name: 2.0 * one[name] - 3.0 * two[name] for name in INPUTS}
    equal(both, gradients(both, method), combined, 1e-9)


@examples
@given(tasks(), methods, seeds)
def test_padding_changes_no_gradient(task: Task, method: Method, seed: int) -> None:
    """Rows of weight 0 get no gradient of their own embedding."""
    (M, d), N = task.phi.shape, len(task.W0)
    rng = np.random.default_rng(seed)
    padded = replace(
        task,
        phi=np.vstack([task.phi, rng.normal(size=(2, d))]),
        Y=np.vstack([task.Y, np.eye(N)[:2]]),
        weights=np.append(task.weights, [0.0, 0.0]),
    )
    actual = gradients(padded, method)
    assert not actual["phi"][M:].any()
    actual |= {name: actual[name][:M] for name in ("phi", "weights")}
    equal(task, actual, gradients(task, method), 1e-7)


@examples
@given(tasks(), methods)
def test_an_example_given_twice_at_half_weight_shares_its_gradient(task: Task, method: Method) -> None:
    """Each copy gets half of the embedding's gradient, and all of the weight's."""
    doubled = replace(
        task, phi=np.vstack([task.phi] * 2), Y=np.vstack([task.Y] * 2), weights=np.tile(task.weights / 2, 2)
    )
    expected = gradients(task, method)
    expected["phi"] = np.vstack([expected["phi"] / 2] * 2)
    expected["weights"] = np.tile(expected["weights"], 2)
    equal(doubled, gradients(doubled, method), expected, 1e-7)


@examples
@given(tasks(), methods, st.sampled_from([0.25, 2.0, 10.0]))
def test_time_and_loss_scale_against_each_other(task: Task, method: Method, factor: float) -> None:
    """T / c with c w and c lam is the same flow: the gradients scale by c, 1 / c and 1 / c."""
    scaled = replace(task, T=task.T / factor, weights=factor * task.weights, lam=factor * task.lam)
    expected = gradients(task, method)
    expected["T"] = factor * expected["T"]
    expected |= {name: expected[name] / factor for name in ("weights", "lam")}
    equal(scaled, gradients(scaled, method), expected, 1e-7)
