"""The model card's sentences."""

from pathlib import Path

import pytest

from comln_serve.bundle import load_bundle
from comln_serve.bundle.manifest import CARD
from tests.support.paths import REPOSITORY
from training.bundles.card import render_card


@pytest.mark.parametrize(
    ("updates", "seconds", "said"),
    [
        (0, 0.0, "No updates"),
        (1, 20.0, "1 update in 0 minutes on "),
        (4, 62.0, "4 updates in 1 minute on "),
        (300, 170.0, "300 updates in 3 minutes on "),
    ],
)
def test_the_course_of_the_training(models_dir: Path, updates: int, seconds: float, said: str) -> None:
    manifest = load_bundle(models_dir / "tiny").manifest
    training = manifest.training.model_copy(update={"updates": updates, "seconds": seconds})
    card = render_card("tiny", manifest.model_copy(update={"training": training}))
    assert said in " ".join(card.split())


@pytest.mark.parametrize("folder", sorted((REPOSITORY / "models").iterdir()), ids=lambda folder: folder.name)
def test_the_cards_of_the_bundles_here_are_as_written_today(folder: Path) -> None:
    card = render_card(folder.name, load_bundle(folder).manifest)
    assert (folder / CARD).read_text(encoding="utf-8") == card
