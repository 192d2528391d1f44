"""Groups of images that must not be in both support and query set: expressions, episodes, refusals."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.data_files import POLICY
from tests.support.image_files import image_bytes
from tests.support.tiny import tiny_config
from tests.support.training import colour_classes, image_set
from training.config import DataConfig
from training.data import DataError, ImageSet, check_episodes, load_split, sample_episode
from training.data.groups import group_images
from training.data.resident import ResidentImages
from training.evaluation.choose import thinned
from training.evaluation.tasks import Task
from training.model import MetaModel
from training.runs.embedded import embed_once
from training.runs.episodes import draw_batch

NAMES = ("00000_00001.png", "00000_00002.png", "00001_00001.png", "loose.png", "other.png")


def named(*names: str, classes: int = 1) -> ImageSet:
    """Classes that each have files of these names."""
    images = np.zeros((len(names) * classes, 1, 1, 3), np.uint8)
    return image_set(images, [len(names)] * classes, files=names * classes)


def tracks(*sizes: int, classes: int = 3) -> ImageSet:
    """Classes with the given number of frames in each of their tracks."""
    names = [f"{track:05}_{i:05}.png" for track, size in enumerate(sizes) for i in range(size)]
    return group_images(named(*names, classes=classes), r"^\d{5}")


@pytest.mark.parametrize("pattern", [r"^\d{5}", r"(\d+)_\d+", r"(?:^(\d{5}))?_0"])
def test_images_with_the_same_match_are_a_group_and_others_are_single(pattern: str) -> None:
    groups = group_images(named(*NAMES), pattern).groups
    assert groups is not None
    assert groups[0] == groups[1]
    assert len(set(groups.tolist())) == 4


def test_the_same_track_number_in_two_classes_is_two_groups() -> None:
    groups = group_images(named(*NAMES, classes=2), r"^\d{5}").groups
    assert groups is not None
    assert not set(groups[:5].tolist()) & set(groups[5:].tolist())


def test_expressions_that_group_nothing_are_refused() -> None:
    with pytest.raises(DataError, match=r"no file name matches.*00000_00001\.png"):
        group_images(named(*NAMES), "^track")
    arrays = ImageSet(np.zeros((2, 1, 1, 3), np.uint8), (np.arange(2),), ("a",))
    with pytest.raises(DataError, match="without file names"):
        group_images(arrays, r"\d")


@pytest.mark.parametrize("shots", [1, 5, (1, 5)])
def test_queries_are_of_other_groups_than_the_support_images(shots: int | tuple[int, int]) -> None:
    data = tracks(6, 6, 2, 9, 1, 4)
    assert data.groups is not None
    for number in range(200):
        drawn = Task(3, shots, 6).draw(data, 0, number)
        for c in range(3):
            support = drawn.support[drawn.support_classes == c]
            query = drawn.query[drawn.query_classes == c]
            assert len(set(query.tolist())) == 6
            assert len(set(support.tolist())) == len(support)
            assert not set(data.groups[support].tolist()) & set(data.groups[query].tolist())


def test_a_class_with_a_single_possible_division_always_gets_it() -> None:
    """The only division is 5 support images from the track of 5, and 2 queries from that of 2."""
    data = tracks(5, 2)
    for seed in range(50):
        episode = sample_episode(np.random.default_rng(seed), data, 2, 5, 2)
        assert {int(image) % 7 for image in episode.support.ravel()} == {0, 1, 2, 3, 4}
    with pytest.raises(DataError, match="7 images in 2 groups, the largest of 5"):
        sample_episode(np.random.default_rng(0), data, 2, 4, 3)
    check_episodes(data, 3, 5, 2)
    with pytest.raises(DataError, match="2 groups"):
        check_episodes(data, 3, 4, 3)


def test_every_image_can_be_support_and_query() -> None:
    data = tracks(3, 3, 3, classes=2)
    drawn = [sample_episode(np.random.default_rng(i), data, 2, 2, 2) for i in range(300)]
    for part in ("support", "query"):
        counts = np.bincount(np.concatenate([getattr(e, part).ravel() for e in drawn]))
        # 1200 draws of 18 images: a standard deviation of a count is 8.
        assert np.abs(counts - 1200 / 18).max() < 40


def test_training_episodes_and_embedded_images_keep_the_groups() -> None:
    data = colour_classes()
    groups = np.arange(len(data.images)) // 2
    data = replace(data, rotations=2, groups=groups)
    embedded = embed_once(MetaModel(tiny_config("prototype")), data)
    assert embedded.groups is not None
    for members in embedded.members:
        assert len(set(embedded.groups[members].tolist())) == len(set(groups[members % len(data.images)].tolist()))
    # Every image shows its group.
    images = np.broadcast_to((groups % 256)[:, None, None, None], data.images.shape)
    told = replace(data, images=images.astype(np.uint8), rotations=1)
    config = tiny_config("prototype", episodes={"ways": 3, "shots": [1, 3], "queries": 3, "tasks": 2})
    for update in range(30):
        batch = draw_batch(config, [ResidentImages(told, torch.device("cpu"))], update)
        M = sum(batch.shots)
        for task in batch.images[:, :, 0, 0, 0]:
            assert not set(task[:M].tolist()) & set(task[M:].tolist())


def test_choosing_settings_keeps_groups_whole() -> None:
    data = tracks(60, 60)
    thin = thinned(data, Task(2, 1, 15))
    assert thin.groups is not None
    check_episodes(thin, 2, 1, 15)


def test_a_recipe_has_the_expression(tmp_path: Path) -> None:
    for name in "ab":
        folder = tmp_path / "images" / "train" / name
        folder.mkdir(parents=True)
        for i, file in enumerate(NAMES):
            (folder / file).write_bytes(image_bytes(seed=i))
    config = DataConfig(kind="image_folder", preprocessing=POLICY, group=r"^\d{5}")
    data = load_split(config, tmp_path / "images", "train")
    assert data.groups is not None
    assert len(set(data.groups.tolist())) == 8
    with pytest.raises(DataError, match="images, split train: no file name matches"):
        load_split(config.model_copy(update={"group": "^x"}), tmp_path / "images", "train")
