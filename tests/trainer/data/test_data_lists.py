"""The user's own images: class lists for a folder, and CSV files."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.data_files import SIZE, SPLITS, load, write_class
from tests.support.image_files import image_bytes
from training.data import DataError

LISTS: dict[str, list[str]] = {"train": ["d", "a"], "val": ["c"], "test": ["b"]}


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name in "abcd":
        write_class(tmp_path / name)
    return tmp_path


def write_lists(root: Path, lists: dict[str, Any] = LISTS) -> dict[str, str]:
    """A text file for train, JSON for the others."""
    (root / "lists").mkdir(exist_ok=True)
    files: dict[str, str] = {}
    for split, names in lists.items():
        files[split] = f"lists/{split}.{'txt' if split == 'train' else 'json'}"
        text = "\n".join(names) + "\n\n" if split == "train" else json.dumps(names)
        (root / files[split]).write_text(text)
    return files


class TestClassLists:
    @pytest.mark.parametrize("one_file", [False, True])
    def test_classes_are_those_of_the_list(self, folders: Path, one_file: bool) -> None:
        splits: Any = write_lists(folders)
        if one_file:
            (folders / "splits.json").write_text(json.dumps(LISTS))
            splits = "splits.json"
        for split in SPLITS:
            data = load("image_folder", folders, split, splits=splits)
            assert list(data.names) == sorted(LISTS[split])
            assert data.images.shape == (2 * len(LISTS[split]), SIZE, SIZE, 3)

    def test_a_class_may_be_nested_deeper(self, tmp_path: Path) -> None:
        write_class(tmp_path / "birds" / "wren")
        (tmp_path / "s.json").write_text('{"train": ["birds/wren"]}')
        assert load("image_folder", tmp_path, "train", splits="s.json").names == ("birds/wren",)

    @pytest.mark.parametrize(
        ("lists", "message"),
        [
            ({"train": ["a", "a"], "val": ["b"]}, r"train\.txt: class 'a' .*listed once"),
            ({"train": ["a"], "val": ["b", "a"]}, r"val\.json: class 'a' of 'val' is also in 'tr"),
            ({"train": [], "val": ["b"]}, r"train\.txt: expected a list of class names"),
            ({"train": ["a"], "val": []}, r"val\.json: expected a list of class names"),
            ({"train": ["a"], "val": "b"}, r"val\.json: expected a list .*found str 'b'"),
            ({"train": ["a"], "val": [1]}, r"val\.json: expected a list"),
            ({"val": ["b"]}, "no class list for 'train'; there are lists for val"),
            ({"train": ["a", "x", "y"]}, "2 of the 3 classes of the train split .*first 'x'"),
        ],
    )
    def test_wrong_lists(self, folders: Path, lists: Any, message: str) -> None:
        with pytest.raises(DataError, match=message):
            load("image_folder", folders, "train", splits=write_lists(folders, lists))

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"[1]", r"s\.json: expected {split: \[classes\]}, found list"),
            (b"{", r"s\.json: not JSON"),
            (b"\xff\xfe", r"s\.json: not a text file in UTF-8"),
            (b'{"train": {}}', r"s\.json: 'train': expected a list of class names"),
            (b'{"dev": ["a"]}', r"s\.json: no class list for 'train'; .* no split"),
            (b'{"train": ["a"], "test": ["a"]}', r"s\.json: class 'a' of 'test' is also in"),
            (None, r"s\.json: No such file"),
        ],
    )
    def test_a_wrong_file(self, folders: Path, content: bytes | None, message: str) -> None:
        if content is not None:
            (folders / "s.json").write_bytes(content)
        with pytest.raises(DataError, match=message):
            load("image_folder", folders, "train", splits="s.json")


def write_images(root: Path, *names: str) -> None:
    for i, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(image_bytes(seed=i, size=(SIZE, SIZE)))


class TestCsv:
    def test_a_split_column(self, tmp_path: Path) -> None:
        write_images(tmp_path, "1.png", "x/2.png", "3.png", "4.png")
        table = tmp_path / "images.csv"
        table.write_text(
            "\ufefflabel, path, split\nb,1.png,train\na,x/2.png,train\nb,3.png,train\nc,4.png,val\n", encoding="utf-8"
        )
        data = load("image_csv", table, "train")
        assert data.names == ("a", "b")
        assert [len(members) for members in data.members] == [1, 2]
        assert load("image_csv", table, "val").names == ("c",)
        with pytest.raises(DataError, match="no line is of split 'test'; there are train, val"):
            load("image_csv", table, "test")

    def test_without_splits_the_classes_are_divided_by_shares(self, tmp_path: Path) -> None:
        names = [f"{i}.png" for i in range(8)]
        write_images(tmp_path, *names)
        table = tmp_path / "images.csv"
        table.write_text("path,label\n" + "".join(f"{name},c{name[0]}\n" for name in names))
        shares = {"class_shares": [0.5, 0.25, 0.25]}
        drawn = [load("image_csv", table, split, **shares).names for split in SPLITS]
        assert [len(part) for part in drawn] == [4, 2, 2]
        assert sorted(name for part in drawn for name in part) == [f"c{i}" for i in range(8)]

    def test_a_file_for_each_split(self, tmp_path: Path) -> None:
        write_images(tmp_path / "images", "a1.jpg", "sub/a2.jpg", "b.jpg")
        (tmp_path / "train.csv").write_text("filename,label\na1.jpg,a\nsub/a2.jpg,a\n")
        (tmp_path / "val.csv").write_text("filename,label\nb.jpg,b\n")
        assert len(load("image_csv", tmp_path, "train").images) == 2
        with pytest.raises(DataError, match=r"test\.csv: No such file"):
            load("image_csv", tmp_path, "test")
        (tmp_path / "test.csv").write_text("filename,label\nb.jpg,b\n")
        with pytest.raises(DataError, match=r"test\.csv: class 'b' of 'test' is also in 'val'"):
            load("image_csv", tmp_path, "test")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "expected a header with .* found an empty file"),
            ("path,label\n", "no image is listed"),
            ("path,name\n1.png,a\n", "expected a header .*found path, name"),
            ("file,label\n1.png,a\n", "expected a header .*found file, label"),
            ("path,label\n1.png\n", "line 2: expected path, label, each"),
            ("path,label\n1.png,a\n,a\n", "line 3: expected path, label"),
            ("path,label\n1.png,a,b\n", r"line 2: expected .*found 1\.png, a"),
            ("path,label,split\n1.png,a,\n", "line 2: expected path, label, split"),
            ("path,label,split\n1.png,a,dev\n", "split 'dev'; the splits are train, val, test"),
            ("path,label\n1.png,a\n2.png,a\n1.png,b\n", r"line 4: 1\.png is on line 2 too"),
            ("path,label,split\n1.png,a,train\n2.png,a,val\n", "class 'a' of 'val' is also in"),
            ("path,label,split\n1.png,a,train\ngone.png,a,train\n", r"a/gone\.png: .*No such file"),
            ("path,label,split\nt.csv,a,train\n", r"a/t\.csv: Expected an image"),
            ("path,label\nx\0y.png,a\n", r"line 2: 'x\\x00y\.png' holds a NUL character"),
            ("path,label,split\npipe,a,train\n", "a/pipe: not a file"),
            ('path,label\n"1.png,a\n' + "x" * 200_000, "not a CSV file"),
        ],
    )
    def test_wrong_files(self, tmp_path: Path, text: str, message: str) -> None:
        write_images(tmp_path, "1.png", "2.png")
        (tmp_path / "t.csv").write_text(text)
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(DataError, match=rf"t\.csv.*{message}"):
            load("image_csv", tmp_path / "t.csv", "train")

    def test_a_file_that_is_not_text(self, tmp_path: Path) -> None:
        write_images(tmp_path, "1.png")
        with pytest.raises(DataError, match=r"1\.png: not a CSV file in UTF-8"):
            load("image_csv", tmp_path / "1.png", "train")

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"gone\.csv: No such file"):
            load("image_csv", tmp_path / "gone.csv", "train")

    def test_shares_that_leave_a_split_empty(self, tmp_path: Path) -> None:
        write_images(tmp_path, "1.png")
        (tmp_path / "t.csv").write_text("path,label\n1.png,a\n")
        with pytest.raises(DataError, match=r"t\.csv: .* leaves none of its 1 for test\. Add cl"):
            load("image_csv", tmp_path / "t.csv", "test")
