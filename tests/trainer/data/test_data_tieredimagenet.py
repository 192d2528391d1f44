"""tieredImageNet as arrays and as PNG files in a pickle: the same images."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.data_files import load, pickle_of_python2, pictures, write_pickle
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


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


IMAGES, TWO = npz(images=pictures(194)), npz(images=pictures(2))


@pytest.mark.parametrize(
    ("file", "content", "labels", "message"),
    [
        ("images.npz", TWO, None, r"val_labels\.pkl: No such file"),
        ("images.npz", IMAGES, {}, r"val_labels\.pkl.*no 'label_specific'; it holds nothing"),
        ("images.npz", IMAGES, [0], r"val_labels\.pkl.*expected a dictionary with 'label_specific'"),
        ("images.npz", IMAGES, {"label_general": [0]}, r"val_labels\.pkl.*'label_specific'; it holds 'label_general'"),
        ("images.npz", IMAGES, {"label_specific": [0]}, r"val_labels\.pkl.*1 labels for 194 images"),
        ("images.npz", TWO, {"label_specific": [0, 1]}, r"val_images\.npz: 2 classes; the val split has 97"),
        *(
            ("images.npz", npz(**arrays), labels("val"), rf"val_images\.npz.*{message}")
            for arrays, message in (
                ({"pictures": pictures(2)}, "no array 'images'; it holds pictures"),
                ({"images": pictures(2) / 255}, "'images': expected images .* float64"),
                ({"images": np.array([{}])}, "not a readable .npz file of plain arrays"),
            )
        ),
        *(
            ("images.npz", content, labels("val"), r"val_images\.npz: not a readable \.npz")
            for content in (b"", b"no archive", b"PK\x03\x04 and no more", IMAGES[:-200])
        ),
        *(
            ("images_png.pkl", images, labels("val"), rf"(?s)val_images_png\.pkl.*{message}")
            for images, message in (
                ({}, "expected a list of PNG files as arrays, found a dict of 0"),
                ([], "expected a list of PNG files"),
                ([np.zeros(9, np.uint8)] * 194, "0/image 0: .*not a readable image"),
                ([np.zeros(9)] * 194, r"image 0: expected the bytes of a PNG .*\(9,\) of float64"),
                ([None] * 194, "image 0: expected the bytes of a PNG"),
            )
        ),
    ],
)
def test_wrong_or_partial_files(tmp_path: Path, file: str, content: Any, labels: Any, message: str) -> None:
    if isinstance(content, bytes):
        (tmp_path / f"val_{file}").write_bytes(content)
    else:
        write_pickle(tmp_path / f"val_{file}", content)
    if labels is not None:
        write_pickle(tmp_path / "val_labels.pkl", labels)
    with pytest.raises(DataError, match=message) as refused:
        load("tieredimagenet", tmp_path, "val")
    assert str(refused.value).count(f"val_{file}") <= 1, "a file is named once"
