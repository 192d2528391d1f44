"""CUB: the class folders of CUB_200_2011 and the standard split of them."""

from pathlib import Path

import pytest

from tests.support.data_files import SPLITS, load, write_class
from training.data import DataError
from training.data.class_lists import standard_split


def test_the_split_is_the_standard_one() -> None:
    names = {split: standard_split("cub", split) for split in SPLITS}
    assert [len(names[split]) for split in SPLITS] == [100, 50, 50]
    numbers = sorted(int(name[:3]) for part in names.values() for name in part)
    assert numbers == list(range(1, 201))
    assert all(int(name[:3]) % 2 == 1 for name in names["train"])


def test_files_that_macos_adds_are_ignored(tmp_path: Path) -> None:
    for name in standard_split("cub", "val"):
        write_class(tmp_path / "images" / name, 2, ".jpg")
        (tmp_path / "images" / name / "._0.jpg").write_bytes(b"\x00\x05\x16\x07")
    assert len(load("cub", tmp_path, "val").images) == 100


def test_an_empty_class_is_named(tmp_path: Path) -> None:
    for name in standard_split("cub", "val"):
        write_class(tmp_path / "images" / name, 0 if name.startswith("006") else 1)
    with pytest.raises(DataError, match=r"class '006\.Least_Auklet' holds no image"):
        load("cub", tmp_path, "val")
