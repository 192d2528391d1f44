"""miniImageNet in all its usual formats, and wrong or incomplete files."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.data_files import SIZE, SPLITS, load, pickle_of_python2, pictures, write_pickle
from tests.support.image_files import image_bytes
from training.data import DataError
from training.data.class_lists import standard_split

PHASES = {"train": "train_phase_train", "val": "val", "test": "test"}


def wnids(split: str) -> list[str]:
    return standard_split("miniimagenet", split)


def write_cache(root: Path, split: str, classes: list[str] | None = None, **other: Any) -> Any:
    """Writes two images per class, with classes alternating; returns them."""
    names = wnids(split) if classes is None else classes
    n = len(names)
    content = {"image_data": pictures(2 * n), "class_dict": {name: [i, n + i] for i, name in enumerate(names)}} | other
    write_pickle(root / f"mini-imagenet-cache-{split}.pkl", content)
    return content


def write_csv(root: Path, split: str, names: list[str]) -> None:
    (root / "images").mkdir(exist_ok=True)
    with (root / f"{split}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["filename", "label"])
        for name in names:
            for i in range(2):
                file_name = f"{name}{i:08}.jpg"
                content = image_bytes(seed=i, fmt="JPEG", size=(SIZE, SIZE))
                (root / "images" / file_name).write_bytes(content)
                writer.writerow([file_name, name])


class TestCache:
    @pytest.mark.parametrize("split", SPLITS)
    def test_classes_are_sorted_and_keep_their_images(self, tmp_path: Path, split: str) -> None:
        backwards = wnids(split)[::-1]
        written = write_cache(tmp_path, split, backwards)
        data = load("miniimagenet", tmp_path, split)
        assert list(data.names) == wnids(split)
        for name, members in zip(data.names, data.members, strict=True):
            indices = written["class_dict"][name]
            np.testing.assert_array_equal(data.images[members], written["image_data"][indices])

    def test_images_of_another_size_are_resized(self, tmp_path: Path) -> None:
        write_cache(tmp_path, "val", image_data=np.full((32, 84, 84, 3), 7, np.uint8))
        data = load("miniimagenet", tmp_path, "val", size=16)
        assert data.images.shape == (32, 16, 16, 3)
        assert (data.images == 7).all()

    def test_images_of_the_right_size_are_not_copied(self, tmp_path: Path) -> None:
        write_cache(tmp_path, "val")
        images = load("miniimagenet", tmp_path, "val").images
        assert not images.flags.owndata  # still the array that the pickle filled

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            ({"image_data": None}, "'image_data': expected images .* found NoneType"),
            ({"image_data": pictures(32) / 255}, r"expected images .*\(32, 8, 8, 3\) of float64"),
            ({"image_data": pictures(32)[..., 0]}, r"expected images .*array \(32, 8, 8\)"),
            ({"image_data": pictures(31)}, "class 'n09256479': indices up to 31.* 31 images"),
            ({"class_dict": [1, 2]}, "'class_dict': expected .*found a list of 2"),
            ({"class_dict": {}}, "'class_dict': expected"),
            ({"class_dict": {"a": [0, 1], "b": [1]}}, "belongs to two classes"),
            ({"class_dict": {"a": [0.5]}}, "class 'a': expected indices"),
            ({"class_dict": {"a": [[1], [2, 3]]}}, "class 'a': expected indices"),
            ({"class_dict": {"a": [-1]}}, "class 'a': indices"),
            ({"class_dict": {"a": []}}, "class 'a': expected indices"),
        ],
    )
    def test_wrong_content(self, tmp_path: Path, other: Any, message: str) -> None:
        write_cache(tmp_path, "val", **other)
        with pytest.raises(DataError, match=rf"mini-imagenet-cache-val\.pkl.*{message}"):
            load("miniimagenet", tmp_path, "val")

    def test_a_missing_key_is_named_with_the_existing_ones(self, tmp_path: Path) -> None:
        write_pickle(tmp_path / "mini-imagenet-cache-val.pkl", {"image_data": pictures(2)})
        with pytest.raises(DataError, match="no 'class_dict'; it holds 'image_data'"):
            load("miniimagenet", tmp_path, "val")

    def test_the_classes_of_another_split(self, tmp_path: Path) -> None:
        """A file under the wrong name would have the model chosen on the test classes."""
        write_cache(tmp_path, "val", wnids("test"))
        with pytest.raises(DataError, match=r"20 others .* 16 are missing .'n01930112' is not one"):
            load("miniimagenet", tmp_path, "val")

    def test_a_partial_file(self, tmp_path: Path) -> None:
        write_cache(tmp_path, "val", wnids("val")[1:])
        with pytest.raises(DataError, match=r"expected the 16 classes .*1 are missing"):
            load("miniimagenet", tmp_path, "val")


class TestCategorySplit:
    @pytest.mark.parametrize("split", SPLITS)
    @pytest.mark.parametrize("python2", [False, True], ids=["python 3", "python 2"])
    def test_images_are_grouped_by_label(self, tmp_path: Path, split: str, python2: bool) -> None:
        n = len(wnids(split))
        labels = [64 + i % n for i in range(2 * n)]
        content = {"data": pictures(2 * n), "labels": labels, "catname2label": {"n01": 64}}
        path = tmp_path / f"miniImageNet_category_split_{PHASES[split]}.pickle"
        if python2:
            path.write_bytes(pickle_of_python2(content))
        else:
            write_pickle(path, content)
        data = load("miniimagenet", tmp_path, split)
        assert data.names == tuple(str(64 + i) for i in range(n))
        assert [list(members) for members in data.members] == [[i, n + i] for i in range(n)]
        np.testing.assert_array_equal(data.images, content["data"])

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ([1], "expected a dictionary with 'data', found a list of 1"),
            ({"labels": [1]}, "no 'data'; it holds 'labels'"),
            ({"data": pictures(2)}, "no 'labels'"),
            ({"data": pictures(2), "labels": [0]}, "1 labels for 2 images"),
            ({"data": pictures(2), "labels": [0.5, 1.0]}, "'labels': expected one integer"),
            ({"data": pictures(2), "labels": [[0], [1, 2]]}, "'labels': expected one integer"),
            ({"data": pictures(2), "labels": None}, "'labels': expected one integer"),
            ({"data": pictures(0), "labels": []}, "'data': expected images"),
            ({"data": [1], "labels": [1]}, "'data': expected images .*found a list of 1"),
            ({"data": pictures(4), "labels": [0, 0, 1, 1]}, "2 classes; the val split has 16"),
        ],
    )
    def test_wrong_content(self, tmp_path: Path, content: Any, message: str) -> None:
        write_pickle(tmp_path / "miniImageNet_category_split_val.pickle", content)
        with pytest.raises(DataError, match=rf"category_split_val\.pickle.*{message}"):
            load("miniimagenet", tmp_path, "val")


class TestCsv:
    def test_files_are_those_of_the_list(self, tmp_path: Path) -> None:
        for split in SPLITS:
            write_csv(tmp_path, split, wnids(split))
        data = load("miniimagenet", tmp_path, "test")
        assert list(data.names) == wnids("test")
        assert data.images.shape == (40, SIZE, SIZE, 3)

    def test_the_classes_of_another_split(self, tmp_path: Path) -> None:
        write_csv(tmp_path, "val", wnids("test"))
        with pytest.raises(DataError, match=r"val\.csv: expected the 16 classes of the val split"):
            load("miniimagenet", tmp_path, "val")

    def test_a_class_of_two_splits(self, tmp_path: Path) -> None:
        write_csv(tmp_path, "val", wnids("val"))
        write_csv(tmp_path, "train", [wnids("val")[0]])
        with pytest.raises(DataError, match=r"val\.csv: class 'n01855672' .* also in 'train'"):
            load("miniimagenet", tmp_path, "val")
