"""What holds for files of every format; those of phones, scanners and microscopes; which formats are accepted."""

import io
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pillow_heif
import pytest
from PIL import Image

from comln_serve.imaging import FORMATS, Preprocessing, open_image, readable
from tests.imaging.test_imaging import STORED, fails, pixels, quadrants, turned
from tests.support.image_files import decode_image, encode, prepare_image, tiff_of

LOSSLESS = {
    "HEIC": {"quality": -1, "chroma": 444, "matrix_coefficients": 0},
    "AVIF": {"quality": 100, "subsampling": "4:4:4"},
    "WEBP": {"lossless": True, "exact": True},
    "TIFF": {},
    "PNG": {},
    "GIF": {},
    "JPEG": {"quality": 95, "subsampling": 0},  # nearly
}
TOLERANCE = {"HEIC": 1, "AVIF": 3, "JPEG": 12} | dict.fromkeys(["WEBP", "TIFF", "PNG", "GIF"], 0)
GREYS = np.array([[0, 257, 32768, 65535]], dtype=np.uint16)


def noise(mode: str = "RGB", size: tuple[int, int] = (40, 24)) -> Image.Image:
    """A picture with smooth colours, in a mode of Pillow."""
    ramp = np.add.outer(np.arange(size[1]) * 3, np.arange(size[0]) * 2)[..., None]
    image = Image.fromarray((ramp * np.array([1, 2, 3]) % 256).astype(np.uint8))
    return image.convert(mode)


@pytest.mark.parametrize("fmt", ["HEIC", "AVIF", "TIFF"])
@pytest.mark.parametrize("size", [(48, 32), (33, 21)])
def test_the_same_picture_as_a_png(fmt: str, size: tuple[int, int]) -> None:
    image = quadrants(size)
    policy = Preprocessing(image_size=16)
    expected = prepare_image(encode(image, "PNG"), policy).astype(int)
    found = prepare_image(encode(image, fmt, **LOSSLESS[fmt]), policy)
    assert np.abs(found - expected).max() <= TOLERANCE[fmt]


@pytest.mark.parametrize("orientation", sorted(STORED))
@pytest.mark.parametrize("fmt", ["HEIC", "AVIF", "TIFF", "JPEG", "PNG", "WEBP"])
def test_orientation_is_applied_once(orientation: int, fmt: str) -> None:
    """HEIC and AVIF turn in their container; a phone writes the same into EXIF as well."""
    upright, (stored, exif) = quadrants(), turned(quadrants(), orientation)
    data = encode(stored, fmt, exif=exif.tobytes() if fmt == "HEIC" else exif, **LOSSLESS[fmt])
    found = open_image(data).decode()
    assert found.size == upright.size
    assert np.abs(pixels(found) - pixels(upright)).max() <= TOLERANCE[fmt]


@pytest.mark.parametrize("fmt", ["HEIC", "AVIF", "TIFF", "PNG", "WEBP"])
def test_alpha_is_laid_over_the_background(fmt: str) -> None:
    source = Image.new("RGBA", (24, 16), (200, 0, 0, 255))
    source.paste((200, 0, 0, 0), (8, 0, 16, 16))
    source.paste((200, 0, 0, 128), (16, 0, 24, 16))
    found = pixels(decode_image(encode(source, fmt, **LOSSLESS[fmt]), background=(0, 0, 100)))
    for column, colour in ((4, [200, 0, 0]), (12, [0, 0, 100]), (20, [100, 0, 50])):
        assert np.abs(found[8, column] - colour).max() <= 2 * TOLERANCE[fmt] + 1


@pytest.mark.parametrize("fmt", ["HEIC", "AVIF"])
@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
def test_colour_modes_of_phone_formats_become_rgb(fmt: str, mode: str) -> None:
    image = noise(mode)
    found = decode_image(encode(image, fmt, quality=95))
    assert np.abs(pixels(found) - pixels(image.convert("RGB"))).mean() < 6


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate", "packbits"])
def test_tiff_keeps_every_pixel(mode: str, compression: str | None) -> None:
    image = noise(mode)
    found = decode_image(encode(image, "TIFF", compression=compression))
    np.testing.assert_array_equal(pixels(found), pixels(image.convert("RGB")))


@pytest.mark.parametrize("compression", ["jpeg", "zstd", "group4"])
def test_compressed_tiffs_keep_every_pixel(compression: str) -> None:
    image = noise("1" if compression == "group4" else "RGB")
    found = decode_image(encode(image, "TIFF", compression=compression))
    assert np.abs(pixels(found) - pixels(image.convert("RGB"))).mean() < 12


@pytest.mark.parametrize("big", [False, True])
def test_16_bit_colours_of_a_tiff_are_scaled(big: bool) -> None:
    samples = np.stack([GREYS, GREYS[:, ::-1], GREYS], axis=-1)
    found = pixels(decode_image(tiff_of(samples, big=big)))
    assert np.abs(found - [[[0, 255, 0], [1, 128, 1], [128, 1, 128], [255, 0, 255]]]).max() <= 1


@pytest.mark.parametrize("fmt", ["PNG", "TIFF"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_greyscale_with_16_bits_is_scaled(fmt: str, order: str) -> None:
    """Medical and microscope images: Pillow's own conversion would turn all but black to white."""
    data = encode(Image.fromarray(GREYS.astype(order + "u2")), fmt)
    assert pixels(decode_image(data)).tolist() == [[[grey] * 3 for grey in (0, 1, 128, 255)]]


def test_greyscale_tiff_where_zero_is_white() -> None:
    found = pixels(decode_image(tiff_of(GREYS, photometric=0)))
    assert found[0, :, 0].tolist() == [255, 254, 127, 0]


def test_greyscale_tiff_with_12_bits() -> None:
    packed = np.array([[0x00, 0x08, 0x00, 0xFF, 0xF1, 0x00]], dtype=np.uint8)  # 0 2048 4095 256
    data = tiff_of(packed, bits=12, t256=4)
    assert pixels(decode_image(data))[0, :, 0].tolist() == [0, 128, 255, 16]


def test_heic_with_10_bits_a_sample() -> None:
    ramp = np.linspace(0, 65535, 64 * 32).reshape(32, 64).astype(np.uint16)
    colours = np.stack([ramp, ramp, ramp], axis=-1)
    file = pillow_heif.from_bytes("RGB;16", (64, 32), colours.tobytes())
    buffer = io.BytesIO()
    file.save(buffer, quality=-1, chroma=444)
    grey = encode(Image.fromarray(ramp), "HEIC", quality=-1)
    for data in (buffer.getvalue(), grey):
        assert np.abs(pixels(decode_image(data)) - (ramp // 257)[..., None]).max() <= 2


@pytest.mark.parametrize(
    ("samples", "kind"),
    [
        (np.zeros((2, 2), np.float32), 3),
        (np.zeros((2, 2), np.int32), 2),
        (np.zeros((2, 2), np.uint32), 1),
        (np.zeros((2, 2), np.int16), 2),
    ],
)
def test_samples_without_black_and_white_are_refused(samples: np.ndarray, kind: int) -> None:
    error = fails(tiff_of(samples, sample_format=kind))
    assert "8 or 16 bits" in error.message
    assert error.detail["received_format"] == "TIFF"


def test_preview_of_a_raw_file_is_refused() -> None:
    """As DNG, NEF and ARW begin: a small picture, marked as such, before the sensor's data."""
    data = tiff_of(np.zeros((8, 8, 3), np.uint8), t254=1)
    assert "raw" in fails(data).message


@pytest.mark.parametrize("fmt", ["TIFF", "AVIF", "GIF", "WEBP", "PNG"])
def test_the_first_page_or_picture_is_taken(fmt: str) -> None:
    first, *others = (Image.new("RGB", (64, 48), colour) for colour in ("red", "lime", "blue"))
    options = {**LOSSLESS[fmt], "save_all": True, "append_images": others}
    found = pixels(decode_image(encode(first, fmt, **options)))
    assert np.abs(found - [255, 0, 0]).max() <= TOLERANCE[fmt]


def test_the_primary_picture_of_heic_wherever_it_is() -> None:
    file = pillow_heif.from_pillow(Image.new("RGB", (64, 48), "red"))
    file.add_from_pillow(Image.new("RGB", (32, 80), "lime"))
    buffer = io.BytesIO()
    file.save(buffer, quality=-1, chroma=444, primary_index=1)
    found = decode_image(buffer.getvalue())
    assert found.size == (32, 80)
    assert np.abs(pixels(found) - [0, 255, 0]).max() <= 2


def test_heic_in_tiles_with_a_thumbnail_as_phones_write_it() -> None:
    image = noise(size=(600, 420))
    buffer = io.BytesIO()
    file = pillow_heif.from_pillow(image)
    file.save(buffer, quality=90, tile_size=256, thumbnails=[128])
    opened = open_image(buffer.getvalue())
    assert opened.pixels >= 600 * 420
    assert np.abs(pixels(opened.decode()) - pixels(image)).mean() < 6


@pytest.mark.parametrize("fmt", ["HEIC", "AVIF", "TIFF"])
def test_threads_decode_the_same_pixels(fmt: str) -> None:
    images = [Image.new("RGB", (200, 150), (9 * n, 255 - 9 * n, 60)) for n in range(24)]
    files = [encode(image, fmt, **LOSSLESS[fmt]) for image in images]
    with ThreadPoolExecutor(8) as pool:
        for image, found in zip(images, pool.map(decode_image, files), strict=True):
            assert np.abs(pixels(found) - pixels(image)).max() <= TOLERANCE[fmt]


def test_opening_heic_leaves_what_pillow_opens_alone() -> None:
    data = encode(quadrants(), "HEIC")
    decode_image(data)
    assert "HEIF" not in Image.OPEN
    with pytest.raises(Image.UnidentifiedImageError):
        Image.open(io.BytesIO(data))


def test_heic_without_its_library_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(noise(), "HEIC")
    monkeypatch.delitem(sys.modules, "comln_serve.imaging.heic", raising=False)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    error = fails(data)
    others = [name for name in FORMATS if name != "HEIC"]
    assert error.message == (
        f"This is HEIC, the format of iPhone photos ({len(data)} bytes). Accepted are {', '.join(others)}, and HEIC "
        "where comln-serve[heic] is installed. Convert it to JPEG; an iPhone takes JPEG with Settings, Camera, "
        "Formats, Most Compatible."
    )
    assert error.detail == {"allowed_formats": others, "received_format": "HEIC"}
    assert fails(data, formats=("JPEG", "PNG")).detail["allowed_formats"] == ["JPEG", "PNG"]


def test_formats_without_a_decoder_are_not_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert readable(FORMATS) == FORMATS
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setattr("PIL.features.check", lambda name: name != "avif")
    assert readable(FORMATS) == tuple(name for name in FORMATS if name not in ("HEIC", "AVIF"))
    assert readable(("AVIF", "PNG")) == ("PNG",)
    data = encode(noise(), "AVIF", **LOSSLESS["AVIF"])
    assert "Convert it to JPEG or PNG." in fails(data, formats=readable(FORMATS)).message


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_format_that_is_switched_off_is_named(fmt: str) -> None:
    others = [name for name in FORMATS if name != fmt]
    data = encode(quadrants(), fmt)
    error = fails(data, formats=others)
    assert error.detail == {"allowed_formats": others, "received_format": fmt}
    assert fmt in error.message
    assert all(name in error.message for name in others)
    assert open_image(data, formats=[fmt]).decode().size == (48, 32)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"%PDF-1.7\n", "PDF"),
        (b"\0\0\0\x14ftypqt  \0\0\0\0qt  ", "MP4 or QuickTime video"),
        (b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81\1", "WebM or Matroska video"),
        (b"RIFF\x20\0\0\0AVI LIST", "AVI video"),
        (b"data:image/jpeg;base64,/9j/4AAQ", "data URL"),
        (b"\x93NUMPY\1\0v\0", "NumPy array"),
        (b"PK\3\4\x14\0", "ZIP"),
        (b"\xff\x0a" + bytes(20), "JPEG XL"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
        (b"\n<!DOCTYPE HTML><title>Not found</title>", "HTML"),
        (b'<?xml version="1.0"?><svg/>', "SVG"),
        (b"P6\n2 2\n255\n", "PPM"),
        (bytes(128) + b"DICM", "DICOM"),
        (b"II*\0\x10\0\0\0CR\2\0", "camera raw"),
    ],
)
def test_a_format_that_is_never_read_is_named(data: bytes, name: str) -> None:
    error = fails(data)
    assert error.detail == {"allowed_formats": list(FORMATS), "received_format": name}
    assert name in error.message


@pytest.mark.parametrize("major", [b"mif1", b"msf1", b"heic", b"avif"])
@pytest.mark.parametrize("fmt", ["HEIC", "AVIF"])
def test_the_container_says_what_is_in_it(fmt: str, major: bytes) -> None:
    """HEIC and AVIF share a container, and some writers name that first."""
    data = encode(quadrants(), fmt)
    coded = data[:8] + major + data[12:]
    if major in (b"mif1", b"msf1") or major.decode().upper() == fmt:
        assert open_image(coded).described.startswith(f"a {fmt} file")
    else:
        fails(coded)


def test_a_jpeg_with_a_second_picture_is_decoded_smaller_too() -> None:
    """Phones append a gain map or a portrait's depth: MPO, which is a JPEG with more behind it."""
    pictures = [quadrants((800, 480)), quadrants((80, 48))]
    buffer = io.BytesIO()
    pictures[0].save(buffer, "MPO", save_all=True, append_images=pictures[1:])
    opened = open_image(buffer.getvalue(), enough=32)
    assert opened.pixels == 100 * 60
    assert opened.decode().size == (100, 60)


@pytest.mark.parametrize(
    ("fmt", "accepted", "advice"),
    [
        ("JPEG", ["PNG"], "Convert it to PNG."),
        ("HEIC", ["PNG"], "Convert it to PNG."),
        ("PNG", ["JPEG"], "Convert it to JPEG."),
        ("PNG", ["WEBP", "BMP", "GIF"], "Convert it to WEBP or BMP."),
    ],
)
def test_only_accepted_formats_are_advised(fmt: str, accepted: list[str], advice: str) -> None:
    assert fails(encode(quadrants(), fmt), formats=accepted).message.endswith(advice)
