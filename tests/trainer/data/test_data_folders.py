"""Class folders of the standard data sets, wherever they are, and what is not there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.data_files import SIZE, SPLITS, load, write_class
from training.data import DataError
from training.data.cifar import cifar_classes
from training.data.class_lists import standard_split


def classes_of(kind: Any, split: Any) -> Mapping[str, str]:
    """The standard split's classes, each with what it is part of."""
    if kind in ("cifar_fs", "fc100"):
        return cifar_classes(kind, split)
    if kind == "tieredimagenet":  # its lists are in its files
        return {f"n{i:08}": "" for i in range(97)} if split == "val" else {}
    return dict.fromkeys(standard_split(kind, split), "")


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        # One class of CIFAR is called "train", as is a split.
        *(
            (kind, f"{above}{{name}}")
            for kind in ("cifar_fs", "fc100")
            for above in ("", "data/", "{split}/", "{part}/")
        ),
        *(("cub", place) for place in ("images/{name}", "CUB_200_2011/images/{name}", "{split}/{name}", "{name}")),
        *(("miniimagenet", place) for place in ("{split}/{name}", "{name}", "images/{name}")),
        ("tieredimagenet", "{split}/{name}"),
    ],
)
def test_class_folders(tmp_path: Path, kind: str, place: str) -> None:
    for split in SPLITS:
        for name, part in classes_of(kind, split).items():
            write_class(tmp_path / place.format(name=name, split=split, part=part), 1, ".JPEG")
    for split in SPLITS if kind != "tieredimagenet" else ("val",):
        data = load(kind, tmp_path, split)
        assert list(data.names) == sorted(classes_of(kind, split))
        assert data.images.shape == (len(data.names), SIZE, SIZE, 3)


@pytest.mark.parametrize(
    ("kind", "place", "message"),
    [
        ("cifar_fs", "", "1 of the 16 classes of the val split have no folder.*'{name}'"),
        ("fc100", "", "1 of the 20 classes of the val split have no folder.*'{name}'"),
        ("cub", "images", r"1 of the 50 .*'002\.Laysan_Albatross' .*images/002"),
        ("miniimagenet", "val", "1 of the 16 classes of the val split .*'n01855672' .*val/n01855672 or n01855672"),
    ],
)
def test_a_missing_class_is_named(tmp_path: Path, kind: str, place: str, message: str) -> None:
    missing, *rest = sorted(classes_of(kind, "val"))
    for name in rest:
        write_class(tmp_path / place / name, 1)
    with pytest.raises(DataError, match=message.format(name=missing)):
        load(kind, tmp_path, "val")


@pytest.mark.parametrize("root", ["", "gone"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("cifar_fs", r"CIFAR_FS_val\.pickle, cifar-100-python"),
        ("fc100", r"FC100_val\.pickle, cifar-100-python"),
        ("cub", "no class of CUB's val split"),
        ("miniimagenet", r"mini-imagenet-cache-val\.pkl, mini.*val\.csv"),
        ("tieredimagenet", r"val_images\.npz or val_images_png\.pkl, with val_la"),
    ],
)
def test_nothing_known(tmp_path: Path, kind: str, message: str, root: str) -> None:
    with pytest.raises(DataError, match=message):
        load(kind, tmp_path / root, "val")
