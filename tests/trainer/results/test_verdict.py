"""Paired differences in sentences, and their mean over data sets."""

import math

import pytest

from training.results.accuracy import Difference, mean_over
from training.results.verdict import verdict

AHEAD, INSIDE = Difference(0.03, 0.002), Difference(0.001, 0.002)


def test_every_head_is_counted_once_and_the_start_is_not_counted() -> None:
    found = verdict({"start": Difference(0.0231, 0.0018), "ridge": AHEAD, "svm": INSIDE})
    assert found == (
        "The bundle is ahead of 1 of 2 heads, inside the interval of 1, behind none. "
        "Adapting adds 2.3 +- 0.2 points over its own start."
    )


def test_heads_that_are_better_are_named_with_the_best_first() -> None:
    behind = {"svm-cv": Difference(-0.004, 0.001), "logistic-cv": Difference(-0.008, 0.003)}
    assert verdict({"ridge": AHEAD} | behind) == (
        "The bundle is ahead of 1 of 3 heads, inside the interval of 0, behind 2: "
        "logistic-cv by 0.8 +- 0.3, svm-cv by 0.4 +- 0.1."
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Difference(-0.02, 0.001), "Adapting loses 2.0 +- 0.1 points against its own start."),
        (Difference(0.0007, 0.0003), "Adapting adds 0.07 +- 0.03 points over its own start."),
        (Difference(0.0007, 0.0006), "Adapting adds 0.07 +- 0.06 points over its own start."),
        (INSIDE, "can be told from chance: +0.10 +- 0.20 points."),
        (Difference(0.0, 0.0), "can be told from chance: 0.00 +- 0.00 points."),
    ],
)
def test_what_adapting_adds(found: Difference, words: str) -> None:
    assert verdict({"start": found}).endswith(words)


def test_the_mean_of_data_sets_has_the_interval_of_a_mean_of_independent_means() -> None:
    found = mean_over([Difference(0.02, 0.003), Difference(-0.01, 0.004)])
    assert found.mean == pytest.approx(0.005)
    assert found.interval == pytest.approx(math.sqrt(0.003**2 + 0.004**2) / 2)
