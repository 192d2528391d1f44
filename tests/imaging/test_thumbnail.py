"""Thumbnails: small, recognisable, and nothing of the file but its pixels."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from comln_serve.imaging import Preprocessing, thumbnail
from tests.support.image_files import encode, prepare_image
from tests.support.paths import REPOSITORY

PHOTOS = sorted((REPOSITORY / "examples" / "groceries").glob("*/support/1.jpg"))


@pytest.mark.parametrize("path", PHOTOS, ids=lambda path: path.parent.parent.name)
def test_a_photo_takes_two_to_four_kilobytes_and_looks_the_same(path: Path) -> None:
    seen = prepare_image(path.read_bytes(), Preprocessing(image_size=224))
    jpeg = thumbnail(seen)
    shown = Image.open(io.BytesIO(jpeg))
    assert (shown.format, shown.size, shown.mode) == ("JPEG", (96, 96), "RGB")
    assert 2000 < len(jpeg) < 4000
    small = Image.fromarray(seen).resize((96, 96), Image.Resampling.LANCZOS)
    difference = np.asarray(shown, dtype=float) - np.asarray(small, dtype=float)
    assert np.abs(difference).mean() < 12


@pytest.mark.parametrize("size", [8, 28, 96])
def test_a_small_image_keeps_its_size(size: int) -> None:
    assert Image.open(io.BytesIO(thumbnail(np.zeros((size, size, 3), np.uint8)))).size == (size, size)


@pytest.mark.parametrize("size", [96, 224, 1024])
def test_noise_takes_six_kilobytes_at_most(size: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    assert len(thumbnail(noise)) < 6000


def test_nothing_is_taken_over_from_the_file() -> None:
    """Neither where a photo was taken, nor by which camera, nor any other text."""
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    exif.get_ifd(0x8825)[1] = "N"
    photo = encode(Image.new("RGB", (300, 200), (200, 30, 30)), "JPEG", exif=exif, comment=b"a remark")
    assert b"a camera" in photo
    jpeg = thumbnail(prepare_image(photo, Preprocessing(image_size=64)))
    shown = Image.open(io.BytesIO(jpeg))
    assert dict(shown.getexif()) == {}
    assert set(shown.info) == {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
    assert not any(text in jpeg for text in (b"Exif", b"a camera", b"a remark"))
