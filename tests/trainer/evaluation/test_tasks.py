"""Tasks: their text form, and that the episodes of a seed never change."""

from dataclasses import replace

import numpy as np
import pytest

from comln_serve.bundle import load_bundle
from comln_serve.engine.embedding.backbone import OnnxBackbone
from tests.support.paths import REPOSITORY
from tests.support.training import image_set
from training.config import Config
from training.data import DataError, load_split, sample_episode
from training.evaluation.evaluate import evaluate
from training.evaluation.tasks import Task, parse_task

ARCHIVE = REPOSITORY.parent / "shared" / "data" / "omniglot" / "images.tar.gz"


SIX = image_set(np.zeros((176, 1, 1, 3), dtype=np.uint8), [30, 25, 28, 27, 26, 40])


def test_episodes_of_equal_shots_are_those_of_the_published_figures() -> None:
    """Expected values are from the version that measured models/omniglot-conv4."""
    episode = sample_episode(np.random.default_rng((0, 0)), SIX, 4, 1, 2)
    assert episode.classes.tolist() == [1, 4, 2, 3]
    assert episode.support.tolist() == [[30], [122], [81], [99]]
    assert episode.query.tolist() == [[50, 34], [125, 135], [70, 69], [83, 93]]

    drawn = Task(4, 1, 2).draw(SIX, 0, 0)
    assert drawn.support.tolist() == [30, 122, 81, 99]
    assert drawn.support_classes.tolist() == [0, 1, 2, 3]
    assert drawn.query.tolist() == [50, 34, 125, 135, 70, 69, 83, 93]
    assert drawn.query_classes.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]

    drawn = Task(4, 5, 2).draw(SIX, 3, 7)
    assert drawn.support[:7].tolist() == [85, 88, 89, 102, 105, 125, 111]
    assert drawn.support_classes.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    assert drawn.query.tolist() == [90, 99, 112, 134, 73, 61, 30, 48]


@pytest.mark.skipif(not ARCHIVE.exists(), reason="Omniglot is not at ../shared/data")
def test_a_recorded_accuracy_is_measured_again() -> None:
    bundle = load_bundle(REPOSITORY / "models" / "omniglot-conv4")
    config = Config.model_validate(bundle.manifest.training.config)
    data = load_split(config.data, ARCHIVE, "val")
    embedded = data.embedded(OnnxBackbone(bundle, "cpu").embed)
    recorded = {(entry.ways, entry.shots): entry for entry in bundle.manifest.accuracy if entry.split == "val"}
    for ways, shots in ((5, 1), (20, 1)):
        entry = recorded[ways, shots]
        found = evaluate(embedded, bundle.head, Task(ways, shots, entry.queries), entry.episodes, entry.seed)
        # Other processors round embeddings differently, which may change the class of a query.
        assert found.mean == pytest.approx(entry.mean, abs=5e-5)
        assert found.interval == pytest.approx(entry.interval, abs=5e-5)


@pytest.mark.parametrize("number", range(5))
def test_unequal_shots_are_part_of_the_largest_episode(number: int) -> None:
    part, whole = Task(4, (1, 10), 3).draw(SIX, 0, number), Task(4, 10, 3).draw(SIX, 0, number)
    np.testing.assert_array_equal(part.query, whole.query)
    counts = np.bincount(part.support_classes, minlength=4)
    for c, count in enumerate(counts):
        kept = whole.support[whole.support_classes == c][:count]
        np.testing.assert_array_equal(part.support[part.support_classes == c], kept)


def test_unequal_shots_are_uniform_and_drawn_for_each_class() -> None:
    counts = np.array([np.bincount(Task(4, (2, 5), 1).draw(SIX, 1, i).support_classes) for i in range(600)])
    values, frequency = np.unique(counts, return_counts=True)
    assert values.tolist() == [2, 3, 4, 5]
    # 2400 draws: a standard deviation of a frequency is 21.
    assert np.abs(frequency - 600).max() < 5 * 21.2
    assert (counts.min(axis=1) < counts.max(axis=1)).mean() > 0.9


@pytest.mark.parametrize(
    ("text", "ways", "shots"), [("5x1", 5, 1), ("20x5", 20, 5), ("5x1-10", 5, (1, 10)), ("5x3-3", 5, 3)]
)
def test_tasks_are_read_and_written(text: str, ways: int, shots: int | tuple[int, int]) -> None:
    task = parse_task(text, 7)
    assert task == Task(ways, shots, 7)
    assert parse_task(str(task), 7) == task


@pytest.mark.parametrize(
    "text", ["", "5", "5x", "x1", "1x1", "5x0", "5x0-3", "5x3-1", "5x-3", "5x1-", "5x1-2-3", "axb"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="5x1-10") as caught:
        parse_task(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("task", [(1, 1, 1), (5, 0, 1), (5, 1, 0), (5, (3, 3), 1), (5, (4, 2), 1)])
def test_impossible_tasks_are_refused(task: tuple[int, int | tuple[int, int], int]) -> None:
    with pytest.raises(ValueError, match="a task has"):
        Task(*task)


def test_too_few_images_say_what_to_ask_for() -> None:
    with pytest.raises(DataError, match=r"5x1-10 with 25 queries .* 10 \+ 25.*fewer"):
        Task(5, (1, 10), 25).draw(SIX, 0, 0)
    with pytest.raises(DataError, match=r"7x1 .* need 7 classes; there are 6\. Ask for fewer ways .*, or add classes"):
        Task(7, 1, 1).draw(SIX, 0, 0)


def test_rotated_classes_are_refused() -> None:
    bundle = load_bundle(REPOSITORY / "models" / "omniglot-conv4")
    with pytest.raises(ValueError, match="without rotated classes"):
        evaluate(replace(SIX, rotations=4), bundle.head, Task(5, 1), 2)
