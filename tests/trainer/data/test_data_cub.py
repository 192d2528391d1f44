"""CUB: the class folders of CUB_200_2011 and the standard split of them."""

from pathlib import Path

import pytest

from tests.support.data_files import SIZE, SPLITS, load, write_class
from training.data import DataError
from training.data.class_lists import standard_split


def test_the_split_is_the_standard_one() -> None:
    names = {split: standard_split("cub", split) for split in SPLITS}
    assert [len(names[split]) for split in SPLITS] == [100, 50, 50]
    numbers = sorted(int(name[:3]) for part in names.values() for name in part)
    assert numbers == list(range(1, 201))
    assert all(int(name[:3]) % 2 == 1 for name in names["train"])


@pytest.mark.parametrize("place", ["images", "CUB_200_2011/images", "{split}", "."])
def test_class_folders(tmp_path: Path, place: str) -> None:
    for split in SPLITS:
        for name in standard_split("cub", split):
            write_class(tmp_path / place.format(split=split) / name, 1, ".jpg")
    for split in SPLITS:
        data = load("cub", tmp_path, split)
        assert list(data.names) == standard_split("cub", split)
        assert data.images.shape == (len(data.names), SIZE, SIZE, 3)


def test_files_that_macos_adds_are_ignored(tmp_path: Path) -> None:
    for name in standard_split("cub", "val"):
        write_class(tmp_path / "images" / name, 2, ".jpg")
        (tmp_path / "images" / name / "._0.jpg").write_bytes(b"\x00\x05\x16\x07")
    assert len(load("cub", tmp_path, "val").images) == 100


def test_a_missing_class_is_named(tmp_path: Path) -> None:
    for name in standard_split("cub", "val")[1:]:
        write_class(tmp_path / "images" / name, 1)
    with pytest.raises(DataError, match=r"1 of the 50 .*'002\.Laysan_Albatross' .*images/002"):
        load("cub", tmp_path, "val")


def test_an_empty_class_is_named(tmp_path: Path) -> None:
    for name in standard_split("cub", "val"):
        write_class(tmp_path / "images" / name, 0 if name.startswith("006") else 1)
    with pytest.raises(DataError, match=r"class '006\.Least_Auklet' holds no image"):
        load("cub", tmp_path, "val")


@pytest.mark.parametrize("root", ["", "gone"])
def test_nothing_known(tmp_path: Path, root: str) -> None:
    with pytest.raises(DataError, match="no class of CUB's val split"):
        load("cub", tmp_path / root, "val")
