"""CIFAR-FS and FC100: pickles, CIFAR-100 itself, class folders."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.data_files import SPLITS, load, pickle_of_python2, pictures, write_pickle
from training.data import DataError
from training.data.cifar import cifar_classes

SIZES = {"cifar_fs": (64, 16, 20), "fc100": (60, 20, 20)}
STEMS = {"cifar_fs": "CIFAR_FS", "fc100": "FC100"}
KINDS = ("cifar_fs", "fc100")
EVERY = sorted(name for split in SPLITS for name in cifar_classes("cifar_fs", split))


def write_cifar100(folder: Path, **other: Any) -> dict[str, Any]:
    """`cifar-100-python`: two images of each class in train, one in test, stored as colour planes."""
    folder.mkdir()
    (folder / "meta").write_bytes(pickle_of_python2({"fine_label_names": EVERY}))
    images = {"train": pictures(200, 32), "test": pictures(100, 32, seed=1)}
    for name, array in images.items():
        content = {
            "data": np.ascontiguousarray(array.transpose(0, 3, 1, 2)).reshape(-1, 3072),
            "fine_labels": [i % 100 for i in range(len(array))],
        } | other
        (folder / name).write_bytes(pickle_of_python2(content))
    return images


@pytest.mark.parametrize("kind", KINDS)
def test_the_splits_share_no_class(kind: Any) -> None:
    classes = [cifar_classes(kind, split) for split in SPLITS]
    assert tuple(map(len, classes)) == SIZES[kind]
    assert sorted(name for part in classes for name in part) == EVERY
    if kind == "fc100":
        superclasses = [set(part.values()) for part in classes]
        assert [len(part) for part in superclasses] == [12, 4, 4]
        assert len(set.union(*superclasses)) == 20


@pytest.mark.parametrize("kind", KINDS)
class TestPickles:
    @pytest.mark.parametrize("split", SPLITS)
    @pytest.mark.parametrize("python2", [False, True], ids=["python 3", "python 2"])
    def test_images_by_label(self, tmp_path: Path, kind: str, split: str, python2: bool) -> None:
        n = SIZES[kind][SPLITS.index(split)]
        content = {"data": pictures(2 * n, 32), "labels": [i % n for i in range(2 * n)]}
        path = tmp_path / f"{STEMS[kind]}_{split}.pickle"
        if python2:
            path.write_bytes(pickle_of_python2(content))
        else:
            write_pickle(path, content)
        data = load(kind, tmp_path, split, size=32)
        assert data.names == tuple(map(str, range(n)))
        np.testing.assert_array_equal(data.images, content["data"])
        assert load(kind, tmp_path, split, size=40).images.shape == (2 * n, 40, 40, 3)

    def test_a_partial_file(self, tmp_path: Path, kind: str) -> None:
        content = {"data": pictures(3, 32), "labels": [0, 1, 2]}
        write_pickle(tmp_path / f"{STEMS[kind]}_val.pickle", content)
        with pytest.raises(DataError, match=r"val\.pickle: 3 classes; the val split has"):
            load(kind, tmp_path, "val")

    def test_labels_of_another_length(self, tmp_path: Path, kind: str) -> None:
        content = {"data": pictures(3, 32), "labels": [0, 1]}
        write_pickle(tmp_path / f"{STEMS[kind]}_val.pickle", content)
        with pytest.raises(DataError, match=r"val\.pickle, 'labels': 2 labels for 3 images"):
            load(kind, tmp_path, "val")


@pytest.mark.parametrize("kind", KINDS)
class TestCifar100:
    @pytest.mark.parametrize("nested", [False, True])
    def test_both_halves_of_each_class(self, tmp_path: Path, kind: Any, nested: bool) -> None:
        folder = tmp_path / "cifar-100-python"
        images = write_cifar100(folder)
        for split in SPLITS:
            data = load(kind, tmp_path if nested else folder, split, size=32)
            assert list(data.names) == sorted(cifar_classes(kind, split))
            for name, members in zip(data.names, data.members, strict=True):
                c = EVERY.index(name)
                expected = np.stack([*images["train"][[c, 100 + c]], images["test"][c]])
                np.testing.assert_array_equal(data.images[members], expected)

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            ({"data": pictures(200)}, r"train, 'data': expected \(n, 3072\) uint8, found an array"),
            ({"fine_labels": [0]}, "train, 'fine_labels': 1 labels for 200 images"),
            ({"fine_labels": [0] * 200}, "train: no image of class"),
        ],
    )
    def test_wrong_content(self, tmp_path: Path, kind: str, other: Any, message: str) -> None:
        write_cifar100(tmp_path / "cifar", **other)
        with pytest.raises(DataError, match=message):
            load(kind, tmp_path / "cifar", "val")

    def test_wrong_or_missing_files(self, tmp_path: Path, kind: str) -> None:
        folder = tmp_path / "cifar"
        write_cifar100(folder)
        (folder / "test").unlink()
        with pytest.raises(DataError, match="test: No such file"):
            load(kind, folder, "val")
        write_pickle(folder / "meta", {"fine_label_names": ["apple"]})
        with pytest.raises(DataError, match="meta, 'fine_label_names': expected 100 names"):
            load(kind, folder, "val")
