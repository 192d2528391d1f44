"""The temperature that is fitted to held-out images, against a solver of SciPy's."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import fminbound
from scipy.special import log_softmax

from comln_serve.report.temperature import fit_temperature


def example(n: int, ways: int, temperature: float) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Logits (n, ways), and classes drawn from their softmax at a temperature."""
    rng = np.random.default_rng(n)
    logits = rng.normal(0, 3, (n, ways))
    likelihood = np.exp(log_softmax(logits / temperature, axis=1))
    return logits, np.array([rng.choice(ways, p=row) for row in likelihood])


@pytest.mark.parametrize(("n", "ways"), [(10, 2), (25, 5), (400, 20)])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_it_is_the_best_one(n: int, ways: int, temperature: float) -> None:
    logits, classes = example(n, ways, temperature)

    def loss(log: float) -> float:
        return float(log**2 - log_softmax(logits / np.exp(log), axis=1)[np.arange(n), classes].sum())

    found = fit_temperature(logits, classes)
    assert found is not None
    assert np.log(found) == pytest.approx(float(fminbound(loss, -5, 5)), abs=0.002)


def test_nine_images_are_too_few() -> None:
    assert fit_temperature(*example(9, 3, 1.0)) is None


def test_images_that_are_all_right_do_not_make_it_zero() -> None:
    classes = np.arange(10) % 3
    found = fit_temperature(5 * np.eye(3)[classes], classes)
    assert found is not None
    assert 0.2 < found < 1


def test_of_very_many_logits_a_part_is_looked_at() -> None:
    logits, classes = example(3000, 300, 2.0)
    assert fit_temperature(logits, classes) == pytest.approx(2.0, rel=0.05)


def test_logits_may_be_huge() -> None:
    logits, classes = example(20, 4, 1.0)
    assert fit_temperature(1e6 * logits, classes) == pytest.approx(np.exp(5))
