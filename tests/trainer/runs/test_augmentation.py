"""Augmentation compared with Pillow and with its description."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from training.config import AugmentationConfig
from training.runs.augmentation import Draw, augment, draw


def images(n: int = 4, size: int = 12) -> torch.Tensor:
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.integers(0, 256, (n, size, size, 3), dtype=np.uint8))


def nothing(n: int, padding: int = 0) -> Draw:
    return Draw(np.full((n, 2), padding), np.zeros(n, dtype=bool), np.ones((n, 3), dtype=np.float32))


def test_the_default_changes_nothing() -> None:
    config, pictures = AugmentationConfig(), images()
    how = draw(np.random.default_rng(0), len(pictures), config)
    assert torch.equal(augment(pictures, how, config), pictures)


def test_a_centred_crop_is_the_image() -> None:
    config, pictures = AugmentationConfig(crop_padding=3), images()
    assert torch.equal(augment(pictures, nothing(4, padding=3), config), pictures)


def test_crops_come_from_the_padded_image() -> None:
    config, pictures = AugmentationConfig(crop_padding=2), images(1, 5)
    how = Draw(np.array([[0, 4]]), np.array([False]), np.ones((1, 3), dtype=np.float32))
    found = augment(pictures, how, config)[0]
    assert not found[:2].any()  # two rows of padding above
    assert not found[:, 3:].any()  # two columns of padding on the right
    assert torch.equal(found[2:, :3], pictures[0, :3, 2:])


def test_a_flip_mirrors_left_and_right() -> None:
    config, pictures = AugmentationConfig(flip=True), images(2)
    how = Draw(np.zeros((2, 2), dtype=int), np.array([True, False]), np.ones((2, 3), np.float32))
    found = augment(pictures, how, config)
    assert torch.equal(found[0], pictures[0].flip(1))
    assert torch.equal(found[1], pictures[1])


@pytest.mark.parametrize(
    ("column", "enhancer"), [(0, ImageEnhance.Brightness), (1, ImageEnhance.Contrast), (2, ImageEnhance.Color)]
)
@pytest.mark.parametrize("factor", [0.6, 1.0, 1.4])
def test_colours_change_as_in_pillow(column: int, enhancer: type[ImageEnhance._Enhance], factor: float) -> None:
    config, pictures = AugmentationConfig(jitter=0.4), images()
    how = nothing(len(pictures))
    how.factors[:, column] = factor
    found = augment(pictures, how, config).numpy().astype(int)
    for picture, result in zip(pictures.numpy(), found, strict=True):
        expected = np.asarray(enhancer(Image.fromarray(picture)).enhance(factor)).astype(int)
        # Pillow rounds the grey of each pixel, and rounds down at the end.
        assert np.abs(result - expected).max() <= 2


def test_draws_cover_their_ranges() -> None:
    config = AugmentationConfig(crop_padding=2, flip=True, jitter=0.4)
    how = draw(np.random.default_rng(0), 4000, config)
    assert set(np.unique(how.offsets)) == set(range(5))
    assert 0.45 < how.flips.mean() < 0.55
    assert how.factors.min() == pytest.approx(0.6, abs=0.01)
    assert how.factors.max() == pytest.approx(1.4, abs=0.01)


def test_disabled_changes_do_not_affect_the_other_draws() -> None:
    one = draw(np.random.default_rng(0), 5, AugmentationConfig(crop_padding=2, flip=True))
    other = draw(np.random.default_rng(0), 5, AugmentationConfig(crop_padding=2, flip=True, jitter=0.4))
    assert np.array_equal(one.offsets, other.offsets)
    assert np.array_equal(one.flips, other.flips)
    assert (one.factors == 1).all()
