"""A run is resumed on the data that it was started on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.training import colour_classes, config
from training.checkpoint_names import DATA, LAST
from training.data import ImageSet
from training.errors import CheckpointError
from training.runs.fit import fit
from training.runs.same_data import check_same_data


def test_a_run_is_not_resumed_on_other_data_of_the_same_size(tmp_path: Path) -> None:
    data = colour_classes()
    other = replace(data, images=255 - data.images)
    fit(config(updates=2), data, data, tmp_path, resume=False)
    for train, val in ((other, data), (data, other)):
        with pytest.raises(CheckpointError, match=r"run on other data.*data\.sha256"):
            fit(config(updates=2), train, val, tmp_path, resume=True)
    assert fit(config(updates=2), data, data, tmp_path, resume=True).update == 2
    (tmp_path / DATA).unlink()  # as by an earlier release, or on purpose
    assert fit(config(updates=2), other, data, tmp_path, resume=True).update == 2


def test_classes_count(tmp_path: Path) -> None:
    data = colour_classes()
    check_same_data(tmp_path, {None: data}, {None: data}, leads=True)
    (tmp_path / LAST).touch()
    check_same_data(tmp_path, {None: data}, {None: data}, leads=True)
    renamed = replace(data, names=(*data.names[:-1], "other"))
    regrouped = replace(data, members=(data.members[1], data.members[0], *data.members[2:]))
    for other in (renamed, regrouped):
        with pytest.raises(CheckpointError):
            check_same_data(tmp_path, {None: other}, {None: data}, leads=True)


def test_images_of_a_large_set_are_looked_at_evenly(tmp_path: Path) -> None:
    images = np.zeros((5000, 2, 2, 3), np.uint8)
    data = ImageSet(images, (np.arange(5000),), ("a",))
    check_same_data(tmp_path, {None: data}, {None: data}, leads=True)
    (tmp_path / LAST).touch()
    other = images.copy()
    other[1000:1010] = 1
    for train in (replace(data, images=other), replace(data, images=np.concatenate([images, other[:1]]))):
        with pytest.raises(CheckpointError):
            check_same_data(tmp_path, {None: train}, {None: data}, leads=True)


def test_a_run_that_has_saved_nothing_is_started_on_any_data(tmp_path: Path) -> None:
    data = colour_classes()
    for images in (data.images, 255 - data.images):
        new = {None: replace(data, images=images)}
        check_same_data(tmp_path, new, new, leads=False)
        assert not (tmp_path / DATA).exists()
    for images in (data.images, 255 - data.images):
        new = {None: replace(data, images=images)}
        check_same_data(tmp_path, new, new, leads=True)
    (tmp_path / LAST).touch()
    check_same_data(tmp_path, new, new, leads=True)
