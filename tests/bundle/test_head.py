"""The head: how adapting starts, how examples are weighted, and the horizon it adapts to."""

from dataclasses import replace

import numpy as np
import pytest

from comln_serve.bundle.head import Head, HorizonLaw, SolverSettings, Start, Weighting
from comln_serve.flow import FlowError, solve_flow

SOLVER = SolverSettings(rtol=1e-6, atol=1e-6, max_steps=200_000)
CLASSES = np.array([0, 1, 1, 2, 2, 2])  # unequal shots


def embeddings(M: int = 6, d: int = 8) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(M, d)).astype(np.float32)


def make_head(start: Start, weighting: Weighting = "uniform", lam: float = 0.0) -> Head:
    """A head for three classes and eight features."""
    W0 = np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32)
    return Head(
        start,
        20.0,
        lam,
        weighting,
        SOLVER,
        W0=W0 if start == "learned" else None,
        alpha=2.0 if start == "prototype" else None,
    )


def test_the_learned_start_is_w0_and_fixes_the_number_of_classes() -> None:
    head = make_head("learned")
    assert head.ways == 3
    assert head.W0 is not None
    W0 = head.initial_weights(embeddings(), CLASSES, 3)
    assert W0.dtype == np.float64
    np.testing.assert_array_equal(W0, head.W0)
    with pytest.raises(ValueError, match="tied to 3 classes, got 2"):
        head.initial_weights(embeddings(), np.minimum(CLASSES, 1), 2)


def test_a_change_of_the_start_does_not_reach_the_head() -> None:
    head = make_head("learned")
    before = np.copy(np.asarray(head.W0))
    head.initial_weights(embeddings(), CLASSES, 3)[:] = 7.0
    np.testing.assert_array_equal(np.asarray(head.W0), before)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_prototypes_need_an_example_of_every_class(missing: int) -> None:
    there = missing != CLASSES
    with pytest.raises(ValueError, match="every class needs an example; 1 have none"):
        make_head("prototype").adapt(embeddings()[there], CLASSES[there], 3)


def test_the_zero_start_takes_any_number_of_classes() -> None:
    head = make_head("zero")
    assert head.ways is None
    np.testing.assert_array_equal(head.initial_weights(embeddings(), CLASSES, 3), np.zeros((3, 8)))
    assert head.initial_weights(embeddings(), np.arange(6), 6).shape == (6, 8)


def test_the_prototype_start_is_alpha_times_the_class_means() -> None:
    phi, head = embeddings(), make_head("prototype")
    assert head.ways is None
    members = np.eye(3, dtype=bool)[:, CLASSES]
    expected = 2.0 * np.stack([phi[rows].astype(np.float64).mean(axis=0) for rows in members])
    np.testing.assert_allclose(head.initial_weights(phi, CLASSES, 3), expected, rtol=1e-14)


def test_a_levelled_start_has_the_directions_of_the_class_means_and_lengths_of_the_shots() -> None:
    phi = embeddings()
    W0 = replace(make_head("prototype"), similarity=0.4).initial_weights(phi, CLASSES, 3)
    means = make_head("prototype").initial_weights(phi, CLASSES, 3)
    np.testing.assert_allclose(np.linalg.norm(W0, axis=1), [2.0, 2 * 0.7**0.5, 2 * 0.6**0.5], rtol=1e-12)
    cosines = (W0 * means).sum(axis=1) / np.linalg.norm(W0, axis=1) / np.linalg.norm(means, axis=1)
    np.testing.assert_allclose(cosines, 1.0, rtol=1e-12)
    assert not replace(make_head("prototype"), similarity=0.4).initial_weights(0 * phi, CLASSES, 3).any()


def test_lengths_of_a_levelled_start_are_those_of_means_of_vectors_with_that_cosine() -> None:
    """The mean of k unit vectors of which each pair has the cosine rho is as long as that."""
    rho, k = 0.4, 3
    vectors = np.linalg.cholesky(np.full((k, k), rho) + (1 - rho) * np.eye(k)).astype(np.float32)
    phi, classes = np.concatenate([vectors, -vectors]), np.repeat([0, 1], k)
    plain = make_head("prototype").initial_weights(phi, classes, 2)
    levelled = replace(make_head("prototype"), similarity=rho).initial_weights(phi, classes, 2)
    np.testing.assert_allclose(levelled, plain, rtol=1e-6)


def test_the_shot_offset_adds_the_common_direction_to_classes_with_fewer_examples() -> None:
    phi, plain = embeddings(), replace(make_head("prototype"), similarity=0.4)
    added = replace(plain, shot_offset=1.5).initial_weights(phi, CLASSES, 3) - plain.initial_weights(phi, CLASSES, 3)
    means = np.stack([phi[c == CLASSES].astype(np.float64).mean(axis=0) for c in range(3)])
    common = means.sum(axis=0) / np.linalg.norm(means.sum(axis=0))
    shots = np.log([1.0, 2.0, 3.0])
    np.testing.assert_allclose(added, 1.5 * np.outer(shots.mean() - shots, common), atol=1e-12)
    equal = np.repeat([0, 1, 2], 2)
    np.testing.assert_allclose(
        replace(plain, shot_offset=1.5).initial_weights(phi, equal, 3), plain.initial_weights(phi, equal, 3), atol=1e-12
    )
    assert not replace(plain, shot_offset=1.5).initial_weights(0 * phi, CLASSES, 3).any()


@pytest.mark.parametrize("start", ["prototype", "learned"])
def test_a_start_without_its_parameters_is_refused(start: Start) -> None:
    head = Head(start, 20.0, 0.0, "uniform", SOLVER)
    with pytest.raises(ValueError, match=r"needs alpha|tied to None"):
        head.initial_weights(embeddings(), CLASSES, 3)


@pytest.mark.parametrize("start", ["learned", "zero", "prototype"])
@pytest.mark.parametrize("lam", [0.0, 0.1])
@pytest.mark.parametrize(
    ("weighting", "weights"), [("uniform", [1 / 6] * 6), ("balanced", [1 / 3, 1 / 6, 1 / 6, 1 / 9, 1 / 9, 1 / 9])]
)
def test_adapt_is_the_flow_from_the_start_with_the_stated_weights(
    start: Start, lam: float, weighting: Weighting, weights: list[float]
) -> None:
    phi, head = embeddings(), make_head(start, weighting, lam)
    expected = solve_flow(
        phi,
        head.initial_weights(phi, CLASSES, 3),
        np.eye(3)[CLASSES],
        20.0,
        lam=lam,
        weights=weights,
        rtol=1e-11,
        atol=1e-11,
    ).W
    W = head.adapt(phi, CLASSES, 3).W
    assert np.abs(W - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("start", ["learned", "zero", "prototype"])
def test_the_weightings_agree_on_equal_shots_and_differ_on_unequal_ones(start: Start) -> None:
    phi = embeddings()

    def difference(classes: np.ndarray) -> float:
        uniform, balanced = (
            make_head(start, weighting).adapt(phi, classes, 3).W for weighting in ("uniform", "balanced")
        )
        return float(np.abs(uniform - balanced).max() / np.abs(uniform).max())

    assert difference(np.arange(6) % 3) <= 1e-12
    assert difference(CLASSES) > 1e-2


def test_balanced_weighting_ignores_how_often_a_class_is_repeated() -> None:
    """Every example of one class given three times: nothing changes."""
    phi, head = embeddings(), make_head("prototype", "balanced")
    rows = np.array([0, 0, 0, 1, 2, 3, 4, 5])
    W, expected = head.adapt(phi[rows], CLASSES[rows], 3).W, head.adapt(phi, CLASSES, 3).W
    assert np.abs(W - expected).max() <= 1e-5 * np.abs(expected).max()


def test_the_horizon_can_be_overridden() -> None:
    phi, head = embeddings(), make_head("zero")
    expected = replace(head, horizon=3.0).adapt(phi, CLASSES, 3).W
    np.testing.assert_array_equal(head.adapt(phi, CLASSES, 3, horizon=3.0).W, expected)
    assert np.abs(head.adapt(phi, CLASSES, 3).W - expected).max() > 0.1
    np.testing.assert_array_equal(head.adapt(phi, CLASSES, 3, horizon=0.0).W, np.zeros((3, 8)))


def test_the_solver_settings_reach_the_solver() -> None:
    phi, head = embeddings(), make_head("zero")
    with pytest.raises(FlowError, match="2 steps were not enough"):
        replace(head, solver=SolverSettings(1e-6, 1e-6, 2)).adapt(phi, CLASSES, 3)
    tight = replace(head, solver=SolverSettings(1e-10, 1e-10, 10_000)).adapt(phi, CLASSES, 3)
    assert tight.accepted > head.adapt(phi, CLASSES, 3).accepted


LAW = HorizonLaw(examples=0.5, classes=-1.0, norm=-0.25)


def test_a_horizon_that_follows_the_task() -> None:
    head = replace(make_head("zero"), exponents=LAW)
    phi = embeddings()
    norm = float((phi.astype(np.float64) ** 2).sum() / 6)
    T = 20.0 * 6**0.5 / 3 * norm**-0.25
    assert head.horizon_of(phi, 3) == pytest.approx(T, rel=1e-12)
    expected = make_head("zero").adapt(phi, CLASSES, 3, horizon=T).W
    np.testing.assert_allclose(head.adapt(phi, CLASSES, 3).W, expected, rtol=1e-9, atol=1e-12)
    assert make_head("zero").horizon_of(phi, 3) == 20.0


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e15])
def test_a_horizon_that_follows_the_task_stays_within_bounds(scale: float) -> None:
    for norm in (-50.0, 50.0):
        head = replace(make_head("zero"), exponents=HorizonLaw(0.0, 0.0, norm))
        assert 0 <= head.horizon_of(scale * embeddings(), 3) <= 1e9
