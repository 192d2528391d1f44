"""The horizon chosen from held-out support images, and states at many horizons in one pass."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special
from scipy.optimize import minimize_scalar
from scipy.stats import sem

from comln_serve.bundle import Head, SolverSettings
from comln_serve.domain.classifier import softmax
from comln_serve.flow import Integration, solve_flow
from comln_serve.report import adapt
from comln_serve.report.held_out import HeldOut
from comln_serve.report.horizon import FACTORS, candidate_factors, choose_horizon
from tests.report.test_report import clusters

SOLVER = SolverSettings(1e-6, 1e-6, 10_000)
HEAD = Head("zero", 100.0, 0.0, "balanced", SOLVER, whitening=3.0, horizon_rule="auto")
CLASSES = np.repeat(np.arange(4), 6)


@pytest.mark.parametrize("lam", [0.0, 0.1])
def test_one_integration_passes_all_horizons(lam: float) -> None:
    """Against a solve of its own for each, in a flow with a logarithmic and one with plain time."""
    phi = clusters(CLASSES, 32).astype(np.float64)
    Y = np.eye(4)[CLASSES]
    marks = np.array([0.0, 1e-3, 0.7, 0.7, 30.0, 1e3, 9e4, 1e5])
    flow = Integration(
        phi @ phi.T,
        np.empty((0, 0)),
        np.zeros((4, 24)),
        np.ascontiguousarray(Y.T),
        np.full(24, 1 / 24),
        1e5,
        lam,
        rtol=1e-8,
        atol=1e-8,
        max_steps=100_000,
        limit_steps=False,
        marks=marks,
    )
    flow.advance()
    for T, X in zip(marks, flow.marked, strict=True):
        W = solve_flow(phi, np.zeros((4, 32)), Y, T, lam=lam, rtol=1e-11, atol=1e-11).W
        np.testing.assert_allclose(-X @ phi, W, atol=2e-6 * max(1.0, np.abs(W).max()))
    np.testing.assert_array_equal(flow.marked[-1], flow.X)


def held_out_at(best: int, noise: float, classes: NDArray[np.intp]) -> HeldOut:
    """Logits that tell the classes apart at the candidate `best`, and less the farther from it."""
    rng = np.random.default_rng(0)
    distance = np.abs(np.arange(len(FACTORS)) - best)[:, None, None]
    truth = np.eye(4)[classes]
    logits = 5 * truth / (1 + distance) + noise * rng.normal(size=(1, len(classes), 4))
    judged = np.ones(len(classes), dtype=np.bool_)
    return HeldOut(FACTORS[:, None, None] * logits, np.zeros(logits.shape[:2]), judged, 5, None)


@pytest.mark.parametrize("best", [0, 3, 13, len(FACTORS) - 1])
def test_the_clearly_best_candidate_is_chosen_whatever_the_size_of_the_logits(best: int) -> None:
    classes = np.repeat(np.arange(4), 100)
    chosen, choice = choose_horizon(held_out_at(best, 1.5, classes), classes, 4, 100.0)
    assert chosen == best
    assert choice.least_loss == pytest.approx(100.0 * FACTORS[best])
    losses = [candidate.loss for candidate in choice.candidates]
    assert losses.index(min(losses)) == best


def test_of_candidates_that_are_equal_the_learned_horizon_is_taken() -> None:
    classes = np.repeat(np.arange(4), 3)
    found = held_out_at(0, 1.5, classes)
    same = replace(found, logits=np.repeat(found.logits[:1], len(FACTORS), axis=0))
    chosen, choice = choose_horizon(same, classes, 4, 100.0)
    assert choice.candidates[chosen].horizon == choice.learned == 100.0
    assert choice.level == pytest.approx((1.0, 10_000.0))


def test_every_class_counts_the_same() -> None:
    """Forty images of one class against two each of the others, which another horizon suits."""
    classes = np.repeat(np.arange(4), [40, 2, 2, 2])
    logits = np.zeros((len(FACTORS), len(classes), 4))
    logits[:, :] = 4 * np.eye(4)[classes]
    logits[:8, 40:] = 0.0
    found = HeldOut(logits, np.zeros(logits.shape[:2]), np.ones(46, dtype=np.bool_), 5, None)
    chosen, choice = choose_horizon(found, classes, 4, 1.0)
    assert chosen >= 8
    assert choice.candidates[0].accuracy == pytest.approx(0.25, abs=1e-9)
    assert choice.candidates[-1].accuracy == pytest.approx(1.0, abs=1e-9)


def losses_at_best_scale(logits: NDArray[np.float64], given: NDArray[np.intp]) -> NDArray[np.float64]:
    """(n,) cross-entropy of logits (n, N) at the scale with the least mean, by SciPy."""

    def losses(log_scale: float) -> NDArray[np.float64]:
        return -special.log_softmax(np.exp(log_scale) * logits, axis=1)[np.arange(len(given)), given]

    best = minimize_scalar(lambda x: losses(x).mean(), bounds=(-8, 8), method="bounded", options={"xatol": 1e-10})
    return losses(best.x)


@pytest.mark.parametrize("seed", range(6))
def test_candidates_within_two_standard_errors_of_the_best_are_as_good(seed: int) -> None:
    """Of every class some images are not judged, and some logits are much larger than others."""
    rng = np.random.default_rng(seed)
    classes, judged = np.tile(np.arange(4), 12), np.repeat([True, False, True], [16, 8, 24])
    quality = 2.0 - np.abs(np.arange(len(FACTORS)) - 5) / 8
    logits = quality[:, None, None] * np.eye(4)[classes] + rng.normal(size=(len(FACTORS), 48, 4))
    logits *= np.exp(0.5 * rng.normal(size=(48, 1)))
    found = HeldOut(FACTORS[:, None, None] * logits, np.zeros(logits.shape[:2]), judged, 5, None)
    chosen, choice = choose_horizon(found, classes, 4, 1.0)
    losses = np.stack([losses_at_best_scale(table[judged], classes[judged]) for table in logits])
    assert [one.loss for one in choice.candidates] == pytest.approx(losses.mean(axis=1), rel=1e-6)
    differences = losses - losses[losses.mean(axis=1).argmin()]
    (good,) = np.nonzero(differences.mean(axis=1) <= 2 * sem(differences, axis=1) + 1e-9)
    assert choice.level == (FACTORS[good[0]], FACTORS[good[-1]])
    assert chosen == min(good, key=lambda at: abs(at - 8))


@pytest.mark.parametrize(("classes", "shots"), [(3, 3), (5, 5), (7, 8)])
def test_all_right_is_an_accuracy_of_one(classes: int, shots: int) -> None:
    """The sum of the images' weights may be rounded to more."""
    given = np.repeat(np.arange(classes), shots)
    logits = np.tile(np.eye(classes)[given], (len(FACTORS), 1, 1))
    found = HeldOut(logits, np.zeros(logits.shape[:2]), np.ones(len(given), dtype=np.bool_), 5, None)
    _, choice = choose_horizon(found, given, classes, 1.0)
    assert {candidate.accuracy for candidate in choice.candidates} == {1.0}


def test_probabilities_of_logits_of_any_size() -> None:
    logits = np.array([[0.0, 2000.0], [-3000.0, -3001.0], [1e300, -1e300]])
    np.testing.assert_allclose(softmax(logits, 2.0), special.softmax(logits / 2.0, axis=1), rtol=1e-12)


@pytest.mark.parametrize(
    ("examples", "n_classes", "count"), [(25, 5, 17), (5000, 100, 9), (5000, 200, 5), (5000, 5000, 3)]
)
def test_fewer_candidates_where_all_would_take_too_much_memory(examples: int, n_classes: int, count: int) -> None:
    factors = candidate_factors(examples, n_classes)
    assert len(factors) == count
    assert set(factors) <= set(FACTORS)
    assert {0.01, 1.0, 100.0} <= set(factors)


def test_a_choice_from_fewer_candidates() -> None:
    classes = np.repeat(np.arange(4), 100)
    found = held_out_at(8, 1.5, classes)
    few = replace(found, logits=found.logits[::4])
    chosen, choice = choose_horizon(few, classes, 4, 100.0, FACTORS[::4])
    assert chosen == 2
    assert [candidate.horizon for candidate in choice.candidates] == pytest.approx([1, 10, 100, 1000, 10_000])


def test_auto_adapts_to_the_horizon_it_reports_and_is_deterministic() -> None:
    phi = clusters(CLASSES, 32, noise=1.5)
    first, second = (adapt(HEAD, phi, CLASSES, 4) for _ in range(2))
    assert first.choice is not None
    assert first.horizon in [candidate.horizon for candidate in first.choice.candidates]
    expected = HEAD.adapt(phi, CLASSES, 4, horizon=first.horizon).W
    assert first.solution.W.tobytes() == second.solution.W.tobytes() == expected.tobytes()
    assert first.found is not None
    assert first.found.logits.shape == (1, 24, 4)
    given = adapt(HEAD, phi, CLASSES, 4, horizon=first.horizon)
    assert given.choice is None
    assert given.found is not None
    np.testing.assert_allclose(first.found.logits, given.found.logits, rtol=0.05, atol=0.05)


def test_the_learned_horizon_serves_where_nothing_can_be_held_out() -> None:
    classes = np.arange(4)
    phi = clusters(classes, 32)
    adaptation = adapt(HEAD, phi, classes, 4)
    assert adaptation.choice is None
    assert adaptation.horizon == 100.0
    cancelled = np.zeros(1, dtype=np.bool_)
    learned = adapt(HEAD, clusters(CLASSES, 32), CLASSES, 4, horizon="learned", cancel=cancelled)
    assert (learned.choice, learned.horizon) == (None, 100.0)
