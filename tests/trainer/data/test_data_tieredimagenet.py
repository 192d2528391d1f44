"""tieredImageNet as arrays and as PNG files in a pickle: the same images."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.data_files import SIZE, load, pickle_of_python2, pictures, write_class, write_pickle
from training.data import DataError

CLASSES = {"train": 351, "val": 97, "test": 160}


def labels(split: str) -> Any:
    """Two images per class, with classes alternating, as in the authors' files."""
    specific = np.tile(np.arange(CLASSES[split]), 2)
    return {
        "label_specific": specific,
        "label_general": specific // 20,
        "label_specific_str": [f"class {i}" for i in range(CLASSES[split])],
    }


def png(image: Any) -> Any:
    """What cv2.imencode returned when the files were made: (size, 1) uint8."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return np.frombuffer(buffer.getvalue(), np.uint8)[:, None].copy()


@pytest.mark.parametrize("split", CLASSES)
def test_npz_and_png_are_the_same_images(tmp_path: Path, split: str) -> None:
    images = pictures(2 * CLASSES[split])
    for folder in ("npz", "png"):
        write_pickle(tmp_path / folder / f"{split}_labels.pkl", labels(split))
    # OpenCV decodes to BGR, which is how the authors' script fills the arrays.
    np.savez(tmp_path / "npz" / f"{split}_images.npz", images=images[..., ::-1])
    write_pickle(tmp_path / "png" / f"{split}_images_png.pkl", [png(image) for image in images])
    for folder in ("npz", "png"):
        data = load("tieredimagenet", tmp_path / folder, split)
        assert len(data.names) == CLASSES[split]
        for i, members in enumerate(data.members):
            expected = images[[i, CLASSES[split] + i]]
            np.testing.assert_array_equal(data.images[members], expected)


def test_images_are_converted_to_rgb_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.data.tieredimagenet._CHUNK", 50)
    write_pickle(tmp_path / "val_labels.pkl", labels("val"))
    images = pictures(2 * 97)
    np.savez(tmp_path / "val_images.npz", images=images)
    data = load("tieredimagenet", tmp_path, "val")
    np.testing.assert_array_equal(data.images, images[..., ::-1])


def test_files_of_python_2_and_of_metaoptnet(tmp_path: Path) -> None:
    (tmp_path / "val_labels.pkl").write_bytes(pickle_of_python2({"labels": [351 + i % 97 for i in range(194)]}))
    content = pickle_of_python2([png(image) for image in pictures(194)])
    (tmp_path / "val_images_png.pkl").write_bytes(content)
    data = load("tieredimagenet", tmp_path, "val", size=16)
    assert data.images.shape == (194, 16, 16, 3)
    assert data.names[0] == "351"


def test_class_folders(tmp_path: Path) -> None:
    for i in range(97):
        write_class(tmp_path / "val" / f"n{i:08}", 1)
    data = load("tieredimagenet", tmp_path, "val")
    assert data.images.shape == (97, SIZE, SIZE, 3)


class TestWrongOrPartial:
    def test_nothing_known(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"val_images\.npz or val_images_png\.pkl, with val_la"):
            load("tieredimagenet", tmp_path, "val")

    def test_missing_labels(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "val_images.npz", images=pictures(2))
        with pytest.raises(DataError, match=r"val_labels\.pkl: No such file"):
            load("tieredimagenet", tmp_path, "val")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ({}, "no 'label_specific'; it holds nothing"),
            ([0], "expected a dictionary with 'label_specific'"),
            ({"label_general": [0]}, "no 'label_specific'; it holds 'label_general'"),
            ({"label_specific": [0]}, "1 labels for 194 images"),
        ],
    )
    def test_wrong_labels(self, tmp_path: Path, content: Any, message: str) -> None:
        np.savez(tmp_path / "val_images.npz", images=pictures(194))
        write_pickle(tmp_path / "val_labels.pkl", content)
        with pytest.raises(DataError, match=rf"val_labels\.pkl.*{message}"):
            load("tieredimagenet", tmp_path, "val")

    def test_too_few_classes(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "val_images.npz", images=pictures(2))
        write_pickle(tmp_path / "val_labels.pkl", {"label_specific": [0, 1]})
        with pytest.raises(DataError, match=r"val_images\.npz: 2 classes; the val split has 97"):
            load("tieredimagenet", tmp_path, "val")

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"pictures": pictures(2)}, "no array 'images'; it holds pictures"),
            ({"images": pictures(2) / 255}, "'images': expected images .* float64"),
            ({"images": np.array([{}])}, "not a readable .npz file of plain arrays"),
        ],
    )
    def test_wrong_arrays(self, tmp_path: Path, arrays: Any, message: str) -> None:
        np.savez(tmp_path / "val_images.npz", **arrays)
        write_pickle(tmp_path / "val_labels.pkl", labels("val"))
        with pytest.raises(DataError, match=rf"val_images\.npz.*{message}"):
            load("tieredimagenet", tmp_path, "val")

    @pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 and no more"])
    def test_files_that_are_not_archives(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "val_images.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"val_images\.npz: not a readable \.npz"):
            load("tieredimagenet", tmp_path, "val")

    def test_a_truncated_archive(self, tmp_path: Path) -> None:
        path = tmp_path / "val_images.npz"
        np.savez(path, images=pictures(50))
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(DataError, match=r"val_images\.npz: not a readable \.npz"):
            load("tieredimagenet", tmp_path, "val")

    @pytest.mark.parametrize(
        ("images", "message"),
        [
            ({}, "expected a list of PNG files as arrays, found a dict of 0"),
            ([], "expected a list of PNG files"),
            ([np.zeros(9, np.uint8)] * 194, "0/image 0: .*not a readable image"),
            ([np.zeros(9)] * 194, r"image 0: expected the bytes of a PNG .*\(9,\) of float64"),
            ([None] * 194, "image 0: expected the bytes of a PNG"),
        ],
    )
    def test_wrong_images(self, tmp_path: Path, images: Any, message: str) -> None:
        write_pickle(tmp_path / "val_images_png.pkl", images)
        write_pickle(tmp_path / "val_labels.pkl", labels("val"))
        with pytest.raises(DataError, match=rf"(?s)val_images_png\.pkl.*{message}") as refused:
            load("tieredimagenet", tmp_path, "val")
        assert str(refused.value).count("val_images_png.pkl") == 1, "the file is named once"
