"""The perceptual hash: the same picture in other light, other pictures, and images it says nothing about."""

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter

from comln_serve.imaging import difference_hash
from tests.support.paths import REPOSITORY

PHOTOS = sorted((REPOSITORY / "examples" / "groceries").glob("*/support/1.jpg"))


def photo(index: int) -> Image.Image:
    return Image.open(PHOTOS[index]).convert("RGB").resize((224, 224))


def hashed(image: Image.Image) -> int:
    found = difference_hash(np.asarray(image))
    assert found is not None
    return found


@pytest.mark.parametrize("index", range(len(PHOTOS)))
def test_light_and_sharpness_change_few_bits_and_another_photo_many(index: int) -> None:
    original = photo(index)
    darker = ImageEnhance.Brightness(original).enhance(0.6).filter(ImageFilter.GaussianBlur(2))
    assert (hashed(original) ^ hashed(darker)).bit_count() <= 8
    assert (hashed(original) ^ hashed(photo(index - 1))).bit_count() >= 20


@pytest.mark.parametrize("size", [8, 9, 28, 224])
def test_a_bit_says_whether_it_gets_brighter_to_the_right(size: int) -> None:
    ramp = np.repeat(np.linspace(0, 255, size).astype(np.uint8)[None, :, None], size, axis=0).repeat(3, axis=2)
    found = difference_hash(ramp)
    if size == 8:  # of nine columns made of eight, two have one colour
        assert found is not None
        assert found.bit_count() >= 48
    else:
        assert found == 2**64 - 1
        assert difference_hash(255 - ramp) == 0


def test_flat_images_and_drawings_have_no_hash() -> None:
    assert difference_hash(np.full((224, 224, 3), 200, np.uint8)) is None
    drawing = Image.open(REPOSITORY / "examples/omniglot/keble-08/support/1.png").convert("RGB")
    assert difference_hash(np.asarray(drawing)) is None
