"""Image files of every kind and mode become the RGB square of the backbone; what is no image is refused."""

import re
import struct
import time
from typing import Literal

import numpy as np
import pytest
from PIL import Image, ImageDraw

from comln_serve.imaging import (
    DEFAULT_MAX_PIXELS,
    FORMATS,
    ImageError,
    Preprocessing,
    open_image,
    pixel_views,
    prepare_views,
)
from tests.support.image_files import decode_image, encode, png_claiming, prepare_image

ORIENTATION = 0x0112
# What a camera held that way stored: the inverse of what a viewer does to show it upright.
STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def quadrants(size: tuple[int, int] = (48, 32)) -> Image.Image:
    """An image that no rotation and no reflection maps to itself."""
    width, height = size
    image = Image.new("RGB", size, (250, 250, 250))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, width // 2 - 1, height // 2 - 1), fill=(220, 20, 20))
    draw.rectangle((width // 2, 0, width, height // 2 - 1), fill=(20, 220, 20))
    draw.rectangle((0, height // 2, width // 2 - 1, height), fill=(20, 20, 220))
    return image


def pixels(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


def fails(data: bytes, kind: str = "invalid_image", **options: object) -> ImageError:
    """The error of that kind with which a file is refused."""
    with pytest.raises(ImageError) as caught:
        open_image(data, **options).decode()
    assert caught.value.kind == kind
    return caught.value


def turned(upright: Image.Image, orientation: int) -> tuple[Image.Image, Image.Exif]:
    """A picture as a camera held that way stores it, and what it writes into EXIF."""
    operation = STORED[orientation]
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return (upright if operation is None else upright.transpose(operation)), exif


@pytest.mark.parametrize("exif", [b"Exif\0\0" + b"\xff" * 40, b"Exif\0\0II*\0\xff\xff\xff\x7f", b"x"])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
def test_corrupt_exif_does_not_matter(exif: bytes) -> None:
    """Broken metadata is common in the wild; the picture is what counts."""
    plain = encode(quadrants(), "JPEG", quality=95)
    segment = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
    decoded = decode_image(plain[:2] + segment + plain[2:])
    np.testing.assert_array_equal(pixels(decoded), pixels(decode_image(plain)))


@pytest.mark.parametrize("mode", ["CMYK", "L", "RGB"])
def test_every_jpeg_mode_becomes_rgb(mode: str) -> None:
    source = quadrants().convert(mode)
    decoded = decode_image(encode(source, "JPEG", quality=95, subsampling=0))
    assert np.abs(pixels(decoded) - pixels(source.convert("RGB"))).max() <= 40


@pytest.mark.parametrize(
    ("mode", "fmt"),
    [
        ("RGB", "PNG"),
        ("L", "PNG"),
        ("1", "PNG"),
        ("P", "PNG"),
        ("RGB", "BMP"),
        ("L", "BMP"),
        ("1", "BMP"),
        ("P", "BMP"),
        ("P", "GIF"),
        ("L", "GIF"),
        ("RGB", "WEBP"),
    ],
)
def test_opaque_lossless_files_keep_every_pixel(mode: str, fmt: str) -> None:
    source = quadrants().convert(mode)
    decoded = decode_image(encode(source, fmt, **({"lossless": True} if fmt == "WEBP" else {})))
    np.testing.assert_array_equal(pixels(decoded), pixels(source.convert("RGB")))


def test_grey_with_alpha_is_laid_over_the_background() -> None:
    source = Image.new("LA", (2, 1))
    source.putdata([(90, 255), (90, 0)])
    decoded = pixels(decode_image(encode(source, "PNG"), background=(1, 2, 3)))
    assert decoded.tolist() == [[[90, 90, 90], [1, 2, 3]]]


@pytest.mark.parametrize("fmt", ["PNG", "GIF"])
def test_a_transparent_palette_entry_shows_the_background(fmt: str) -> None:
    source = Image.new("P", (2, 1))
    source.putpalette([200, 0, 0, 0, 200, 0])
    source.putdata([0, 1])
    decoded = pixels(decode_image(encode(source, fmt, transparency=1), background=(7, 8, 9)))
    assert decoded.tolist() == [[[200, 0, 0], [7, 8, 9]]]


@pytest.mark.parametrize(("mode", "key"), [("L", 40), ("RGB", (40, 40, 40))])
def test_a_transparent_colour_shows_the_background(mode: str, key: object) -> None:
    source = Image.new("L", (2, 1))
    source.putdata([40, 90])
    data = encode(source.convert(mode), "PNG", transparency=key)
    decoded = pixels(decode_image(data, background=(7, 8, 9)))
    assert decoded.tolist() == [[[7, 8, 9], [90, 90, 90]]]


def test_a_transparent_16_bit_grey_shows_the_background() -> None:
    samples = np.array([[1000, 65535]], dtype=np.uint16)
    data = encode(Image.fromarray(samples), "PNG", transparency=1000)
    decoded = pixels(decode_image(data, background=(7, 8, 9)))
    assert decoded.tolist() == [[[7, 8, 9], [255, 255, 255]]]


@pytest.mark.parametrize("size", [(1, 5000), (5000, 1), (1, 1), (3, 2)])
@pytest.mark.parametrize("resize", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
def test_any_shape_becomes_the_square(size: tuple[int, int], resize: str, interpolation: str) -> None:
    policy = Preprocessing.model_validate({"image_size": 16, "resize": resize, "interpolation": interpolation})
    data = encode(Image.new("RGB", size, (10, 120, 230)), "PNG")
    prepared = prepare_image(data, policy)
    assert prepared.shape == (16, 16, 3)
    assert prepared.dtype == np.uint8
    image = (prepared == [10, 120, 230]).all(axis=2)
    if resize == "pad":
        background = (prepared == 255).all(axis=2)
        assert (image | background).all()
        shown = (max(1, round(16 * size[1] / max(size))), max(1, round(16 * size[0] / max(size))))
        assert (image.any(axis=1).sum(), image.any(axis=0).sum()) == shown
    else:
        assert image.all()


@pytest.mark.parametrize("resize", ["pad", "stretch"])
@pytest.mark.parametrize("size", [(16_000_000, 1), (1, 16_000_000)], ids=["wide", "tall"])
def test_a_line_of_millions_of_pixels_takes_little_time_and_keeps_its_colour(
    size: tuple[int, int], resize: Literal["pad", "stretch"]
) -> None:
    """Filtered at once, it would take seconds, which nothing can stop, and most of a gigabyte."""
    picture = Image.new("RGB", size, (200, 100, 50))
    policy = Preprocessing(image_size=84, resize=resize, interpolation="lanczos")
    began = time.thread_time()
    pixels = pixel_views(np.asarray(picture), policy)[0]
    assert time.thread_time() - began < 2
    assert pixels.shape == (84, 84, 3)
    assert [200, 100, 50] in pixels.reshape(-1, 3).tolist()


def test_crop_takes_the_centre_and_stretch_takes_all() -> None:
    source = Image.new("RGB", (48, 16), (255, 0, 0))
    source.paste((0, 0, 255), (16, 0, 32, 16))
    data = encode(source, "PNG")
    crop = prepare_image(data, Preprocessing(image_size=16, resize="crop"))
    assert (crop == [0, 0, 255]).all()
    stretch = prepare_image(data, Preprocessing(image_size=16, resize="stretch"))
    assert (stretch[:, 0] == [255, 0, 0]).all()
    assert (stretch[:, 8] == [0, 0, 255]).all()
    assert (stretch[:, -1] == [255, 0, 0]).all()


def test_a_crop_keeps_its_share_of_the_centre() -> None:
    """As torchvision's Resize(256) and CenterCrop(224), but in one step, so within rounding of the edges."""
    source = Image.new("RGB", (80, 48), (255, 0, 0))
    source.paste((0, 0, 255), (19, 3, 61, 45))
    policy = Preprocessing(image_size=42, crop_fraction=0.875)
    assert (prepare_image(encode(source, "PNG"), policy) == [0, 0, 255]).all()
    whole = prepare_image(encode(source, "PNG"), Preprocessing(image_size=48))
    assert (whole[0] == [255, 0, 0]).all()
    assert policy.enough == 96
    with pytest.raises(ValueError, match=r'crop_fraction needs resize "crop", got "pad"'):
        Preprocessing(image_size=42, resize="pad", crop_fraction=0.875)


def test_views_are_crops_of_one_image_and_the_first_is_the_one_of_predictions() -> None:
    source = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8))
    data, policy = encode(source, "PNG"), Preprocessing(image_size=16, crop_fraction=0.8, support_views=(1.0, 0.5))
    views = prepare_views(data, policy)
    assert views.shape == (3, 16, 16, 3)
    for view, share in zip(views, (0.8, 1.0, 0.5), strict=True):
        alone = Preprocessing(image_size=16, crop_fraction=share)
        np.testing.assert_array_equal(view, prepare_image(data, alone))
    np.testing.assert_array_equal(prepare_image(data, policy), views[0])
    assert policy.enough == Preprocessing(image_size=16, crop_fraction=0.8).enough, (
        "a JPEG is decoded as for predictions"
    )
    assert prepare_views(data, Preprocessing(image_size=16)).shape == (1, 16, 16, 3)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"resize": "stretch", "support_views": [0.5]}, 'support_views needs resize "crop", got "stretch"'),
        ({"support_views": [0.5, 1.0]}, "differ from each other and from crop_fraction, got 0.5, 1"),
        ({"crop_fraction": 0.8, "support_views": [0.5, 0.5]}, "differ"),
        ({"support_views": [0.2]}, "greater than or equal to 0.25"),
        ({"support_views": [0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65]}, "at most 7"),
    ],
)
def test_views_that_cannot_be(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Preprocessing.model_validate({"image_size": 16, **keys})


def test_pad_fills_with_the_background() -> None:
    data = encode(Image.new("RGB", (32, 16), (255, 0, 0)), "PNG")
    policy = Preprocessing(image_size=16, resize="pad", background=(9, 8, 7))
    prepared = prepare_image(data, policy)
    assert (prepared[:4] == [9, 8, 7]).all()
    assert (prepared[4:12] == [255, 0, 0]).all()
    assert (prepared[12:] == [9, 8, 7]).all()


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_large_jpeg_is_decoded_smaller_but_never_too_small(mode: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = encode(quadrants((800, 480)).convert(mode), "JPEG", exif=exif)
    decoded = open_image(data, enough=32).decode()
    shown = (800, 480) if orientation == 1 else (480, 800)
    assert decoded.size == (shown[0] // 8, shown[1] // 8)
    decoded = open_image(data, enough=200).decode()
    assert decoded.size == (shown[0] // 2, shown[1] // 2)
    assert open_image(data, enough=481).decode().size == shown
    assert decode_image(data).size == shown


def test_reduced_jpeg_is_the_same_picture() -> None:
    data = encode(quadrants((640, 640)), "JPEG", quality=95)
    policy = Preprocessing(image_size=16)
    full = np.asarray(decode_image(data).resize((16, 16), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(prepare_image(data, policy).astype(int) - full).max() <= 12


def test_an_empty_file_is_refused() -> None:
    assert "empty" in fails(b"").message


@pytest.mark.parametrize(
    "data", [b"hello", b"\0" * 1000, b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"RIFF\0\0\0\0WEBP"]
)
def test_a_file_that_is_no_image_is_refused(data: bytes) -> None:
    assert fails(data).detail["allowed_formats"] == list(FORMATS)


@pytest.mark.parametrize("fmt", ["ICO", "PPM", "TGA", "PDF"])
def test_formats_that_are_not_served_are_refused(fmt: str) -> None:
    """Pillow could read most of these; each is attack surface nobody asked for."""
    fails(encode(quadrants(), fmt))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
def test_a_truncated_image_is_refused(fmt: str, kept: float) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    data = encode(Image.fromarray(noise), fmt)
    assert decode_image(data).size == (24, 24)
    fails(data[: int(kept * len(data))])


def test_pixel_limit_is_inclusive() -> None:
    data = encode(Image.new("RGB", (30, 20)), "PNG")
    assert decode_image(data, max_pixels=600).size == (30, 20)
    error = fails(data, "image_too_large", max_pixels=599)
    assert error.detail == {"received_pixels": 600, "allowed_pixels": 599}


@pytest.mark.parametrize("side", [9_000, 12_000, 100_000])
def test_size_is_refused_before_decoding(side: int) -> None:
    """Pillow only warns from 89 and raises from 179 million pixels; all are over our limit.

    The data behind the header is a few bytes: decoding it would be INVALID_IMAGE.
    """
    error = fails(png_claiming(side, side), "image_too_large")
    assert error.detail["allowed_pixels"] == DEFAULT_MAX_PIXELS


def test_a_false_size_within_the_limit_is_a_corrupt_image() -> None:
    fails(png_claiming(60, 60))
