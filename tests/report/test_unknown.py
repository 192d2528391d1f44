"""Similarity of images to classes, and the threshold of unknown ones."""

import numpy as np
import pytest
from scipy import stats

from comln_serve.report.unknown import nearest_other, similarity, threshold


def test_similarity_does_not_see_lengths() -> None:
    rng = np.random.default_rng(0)
    q, W = rng.normal(size=(6, 9)).astype(np.float32), rng.normal(size=(3, 9)).astype(np.float32)
    found = similarity(q, W)
    for row, value in zip(q, found, strict=True):
        length = np.sqrt((np.linalg.norm(W, axis=1) ** 2).mean())
        assert value == pytest.approx(max(row @ w for w in W) / np.linalg.norm(row) / length, abs=1e-6)
    np.testing.assert_allclose(similarity(7 * q, 0.1 * W), found, atol=1e-6)
    np.testing.assert_array_equal(similarity(0 * q, W), np.zeros(6))
    np.testing.assert_array_equal(similarity(q, 0 * W), np.zeros(6))


def test_the_nearest_other_class_is_that_most_like_an_image_but_its_own() -> None:
    """In every image's place the largest of the similarities to one class alone, but for its own."""
    rng = np.random.default_rng(0)
    q, W = rng.normal(size=(6, 9)).astype(np.float32), rng.normal(size=(3, 9)).astype(np.float32)
    classes = np.array([0, 0, 1, 2, 2, 2])
    W[2] = 0.0  # with all others negative, the nearest is at 0
    length = np.sqrt((np.linalg.norm(W, axis=1) ** 2).mean())
    expected = [
        max(row @ w / np.linalg.norm(row) / length for c, w in enumerate(W) if c != own)
        for row, own in zip(q, classes, strict=True)
    ]
    assert nearest_other(q, classes, W) == pytest.approx(np.mean(expected), abs=1e-6)
    assert nearest_other(0 * q, classes, W) == 0.0


def test_the_threshold_of_many_images_is_a_quantile() -> None:
    values = np.linspace(0, 1, 101)
    assert threshold(values) == pytest.approx(0.05)
    assert threshold(values[:20]) == pytest.approx(0.05 * 0.19)


@pytest.mark.parametrize("n", range(3, 20))
def test_the_threshold_of_few_images_is_the_end_of_a_prediction_interval(n: int) -> None:
    values = np.random.default_rng(n).normal(0.5, 0.1, n)
    expected = values.mean() + stats.t.ppf(0.05, n - 1) * values.std(ddof=1) * np.sqrt(1 + 1 / n)
    assert threshold(values) == pytest.approx(expected, abs=1e-4)


def test_two_images_have_no_threshold() -> None:
    assert threshold(np.array([0.4, 0.5])) is None
