"""The model card's sentences."""

import pytest

from comln_serve.bundle import load_bundle
from tests.support.paths import REPOSITORY
from training.bundles.card import _course


@pytest.mark.parametrize(
    ("updates", "seconds", "said"),
    [
        (0, 0.0, "No updates"),
        (1, 20.0, "1 update in 0 minutes on "),
        (4, 62.0, "4 updates in 1 minute on "),
        (300, 170.0, "300 updates in 3 minutes on "),
    ],
)
def test_the_course_of_the_training(updates: int, seconds: float, said: str) -> None:
    training = load_bundle(REPOSITORY / "tests" / "bundles" / "tiny").manifest.training
    assert _course(training.model_copy(update={"updates": updates, "seconds": seconds})).startswith(said)
