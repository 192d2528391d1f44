"""The orientation is found where Pillow finds it, without its reader, which a file can make slow."""

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from comln_serve.imaging import open_image
from tests.support.image_files import encode

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8))
KINDS = {"B": 1, "H": 3, "I": 4}


def exif(orientation: int, order: str, kind: str, *, count: int = 1) -> bytes:
    """An EXIF block of two tags."""
    value = struct.pack(order + kind, orientation).ljust(4, b"\0")
    tags = struct.pack(f"{order}HHI4s", 271, 2, 2, b"x\0\0\0")
    tags += struct.pack(f"{order}HHI4s", 274, KINDS[kind], count, value)
    return b"Exif\0\0" + (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, 2) + tags + bytes(4)


def agrees(data: bytes) -> bool:
    """Whether the decoded picture is the one that Pillow turns upright; returns whether it was turned."""
    with Image.open(io.BytesIO(data)) as stored:
        expected = ImageOps.exif_transpose(stored).convert("RGB")
        turned = np.asarray(expected).tobytes() != np.asarray(stored.convert("RGB")).tobytes()
    np.testing.assert_array_equal(np.asarray(open_image(data).decode()), np.asarray(expected))
    return turned


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("orientation", range(10))
def test_exif_of_both_byte_orders(orientation: int, order: str, kind: str) -> None:
    for fmt in ("PNG", "JPEG"):
        assert agrees(encode(PICTURE, fmt, exif=exif(orientation, order, kind))) == (
            1 < orientation < 9 and kind != "B"
        )
    assert not agrees(encode(PICTURE, "PNG", exif=exif(orientation, order, kind, count=0)))


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("form", ['<x tiff:Orientation="%d"/>', "<tiff:Orientation>%d</tiff:Orientation>"])
def test_xmp_where_exif_says_nothing(orientation: int, form: str) -> None:
    info = PngInfo()
    info.add_itxt("XML:com.adobe.xmp", form % orientation)
    assert agrees(encode(PICTURE, "PNG", pnginfo=info)) == (1 < orientation < 9)
    assert not agrees(encode(PICTURE, "PNG", pnginfo=info, exif=exif(1, "<", "H")))
    assert agrees(encode(PICTURE, "JPEG", xmp=(form % orientation).encode())) == (1 < orientation < 9)


@pytest.mark.parametrize("digits", ["zz", "4", "", exif(6, "<", "H").hex(), exif(6, ">", "H")[6:].hex()])
@pytest.mark.parametrize("compressed", [False, True])
def test_exif_that_imagemagick_wrote_as_text(digits: str, compressed: bool) -> None:
    info = PngInfo()
    info.add_text("Raw profile type exif", f"\nexif\n      {len(digits) // 2}\n{digits}\n", zip=compressed)
    data = encode(PICTURE, "PNG", pnginfo=info)
    size = open_image(data).decode().size
    assert size == (PICTURE.size[::-1] if len(digits) > 20 else PICTURE.size)


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP"])
def test_pillows_reader_is_not_needed(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads all values and writes them anew: 17 s for one tag of two million fractions in a WebP."""
    data = encode(PICTURE, fmt, exif=exif(6, "<", "H"))

    def refuse(*_arguments: object) -> None:
        raise AssertionError

    opened = open_image(data)
    for name in ("load", "load_from_fp", "tobytes"):
        monkeypatch.setattr(Image.Exif, name, refuse)
    assert opened.decode().size == PICTURE.size[::-1]
