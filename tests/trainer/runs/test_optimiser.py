"""The schedule of the learning rate."""

import pytest

from training.runs.optimiser import half_cosine, steps


def test_half_cosine_rises_then_falls_to_zero() -> None:
    factor = half_cosine(100, warmup=10)
    assert [factor(0), factor(4), factor(9)] == pytest.approx([0.1, 0.5, 1.0])
    assert factor(50) == pytest.approx(0.5)
    assert factor(100) == pytest.approx(0.0, abs=1e-15)
    falling = [factor(update) for update in range(10, 101)]
    assert falling == sorted(falling, reverse=True)


def test_steps_are_metaoptnet_s() -> None:
    factor = steps(0.1, ((20_000, 0.006), (40_000, 0.0012), (50_000, 0.00024)))
    rates = [0.1 * factor(update) for update in (0, 19_999, 20_000, 40_000, 49_999, 59_999)]
    assert rates == pytest.approx([0.1, 0.1, 0.006, 0.0012, 0.0012, 0.00024])
