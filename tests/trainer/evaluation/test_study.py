"""Horizons and steps of a study where the learned T depends on the task."""

from dataclasses import replace

import numpy as np
import pytest

from comln_serve.bundle import Head, SolverSettings
from comln_serve.bundle.head import HorizonLaw
from tests.trainer.evaluation.test_baselines import clusters
from training.evaluation.evaluate import adapted
from training.evaluation.study import Episodes, fixed, horizons, multiple, part, solvers
from training.evaluation.tasks import Task

SOLVER = SolverSettings(1e-6, 1e-6, 100_000)
LAW = HorizonLaw(examples=-1.0, classes=0.5, norm=-1.0)
HEAD = Head("prototype", 60.0, 0.0, "balanced", SOLVER, alpha=0.1, exponents=LAW)
TASK = Task(4, (1, 4), 5)


@pytest.fixture(scope="module")
def on() -> Episodes:
    data = clusters(2.0)
    # Norms differ between images, so that T differs between episodes even with equal shots.
    lengths = np.random.default_rng(1).uniform(0.3, 3.0, len(data.images)).astype(np.float32)
    return Episodes(replace(data, images=data.images * lengths[:, None]), 20, 0)


def learned(on: Episodes) -> list[float]:
    """T of every episode, directly from the formula."""
    found = []
    for number in range(on.count):
        phi = on.data.images[TASK.draw(on.data, on.seed, number).support].astype(float)
        found.append(60.0 / len(phi) * 4**0.5 / float((phi**2).sum(axis=1).mean()))
    return found


def test_the_learned_row_is_the_served_model_and_factors_multiply_its_horizon(on: Episodes) -> None:
    rows = horizons(HEAD, on, TASK, [multiple(0.01), multiple(100.0)])
    assert [row.factor for row in rows] == pytest.approx([0, 0.01, 1, 100])
    middle = float(np.median(learned(on)))
    assert [row.horizon for row in rows] == pytest.approx([0, 0.01 * middle, middle, 100 * middle])
    own = on.measure(adapted(HEAD), TASK)
    np.testing.assert_array_equal(rows[2].measured.episodes, own.episodes)
    far = Head("prototype", 6000.0, 0.0, "balanced", SOLVER, alpha=0.1, exponents=LAW)
    np.testing.assert_array_equal(rows[3].measured.episodes, on.measure(adapted(far), TASK).episodes)
    # Ignoring the exponents, with the constant as T, gives another result.
    plain = on.measure(adapted(HEAD, 60.0), TASK)
    assert (plain.episodes != own.episodes).any()


def test_euler_integrates_to_the_horizon_of_the_served_model(on: Episodes) -> None:
    exact, many, small = solvers(HEAD, on, TASK, [part(2000), fixed(0.01)])
    middle = float(np.median(learned(on)))
    assert (many.steps, many.step_size) == (2000, pytest.approx(middle / 2000))
    assert (small.steps, small.step_size) == (int(np.ceil(middle / 0.01)), 0.01)
    for row in (many, small):
        assert row.measured.accuracy.mean == pytest.approx(exact.measured.accuracy.mean, abs=0.01)


def test_horizons_in_flow_time_are_those_for_every_task(on: Episodes) -> None:
    zero, *rows = horizons(HEAD, on, TASK, [fixed(3.0)])
    (three,) = [row for row in rows if not row.learned]
    assert zero.horizon == 0.0
    np.testing.assert_array_equal(three.measured.episodes, on.measure(adapted(HEAD, 3.0), TASK).episodes)
