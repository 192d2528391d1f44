"""Texts and colour profiles of PNG files never reach Pillow, but for those that may have the orientation."""

import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from comln_serve.imaging import ImageError, open_image
from comln_serve.imaging.png import unneeded_parts
from tests.support.image_files import encode, png_chunk

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8))
XMP = '<x tiff:Orientation="6"/>' + 4096 * " "  # as it is padded, to be edited in place
RAW = "Raw profile type exif\0"
MEGABYTE = "\N{GRINNING FACE}" + "a" * 1_000_000


def with_chunks(*chunks: bytes) -> tuple[bytes, bytes]:
    """A PNG file with these chunks before and behind its pixels, and one without them."""
    plain = encode(PICTURE, "PNG")
    return plain[:33] + b"".join(chunks) + plain[33:-12] + b"".join(chunks) + plain[-12:], plain


def without_texts(data: bytes) -> bytes:
    """What Pillow reads of a file."""
    kept, at = b"", 0
    for start, end in unneeded_parts(data).items():
        kept, at = kept + data[at:start], end
    return kept + data[at:]


def itxt(keyword: str, text: str, *, compressed: bool = True) -> bytes:
    content = zlib.compress(text.encode(), 9) if compressed else text.encode()
    return png_chunk(b"iTXt", keyword.encode() + bytes([0, compressed, 0, 0, 0]) + content)


@pytest.mark.parametrize(
    "chunk",
    [
        itxt("comment", MEGABYTE),
        itxt("XML:com.adobe.xmp", MEGABYTE),
        itxt("XML:com.adobe.xmp", MEGABYTE, compressed=False),
        png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0not compressed"),
        png_chunk(b"zTXt", RAW.encode() + b"\0" + zlib.compress(bytes(1_000_000))),
        png_chunk(b"tEXt", b"exif\0text"),
        png_chunk(b"tEXt", b"transparency\0text"),
        png_chunk(b"iCCP", b"name\0\0" + zlib.compress(bytes(1_000_000))),
    ],
)
def test_texts_and_profiles_are_left_out(chunk: bytes) -> None:
    data, plain = with_chunks(*[chunk] * 60)
    assert without_texts(data) == plain
    np.testing.assert_array_equal(np.asarray(open_image(data).decode()), np.asarray(PICTURE))


@pytest.mark.parametrize("compressed", [True, False])
def test_one_text_that_has_the_orientation_is_kept(compressed: bool) -> None:
    data, plain = with_chunks(*[itxt("XML:com.adobe.xmp", XMP, compressed=compressed)] * 3)
    assert len(without_texts(data)) == len(plain) + len(itxt("XML:com.adobe.xmp", XMP, compressed=compressed))
    assert open_image(data).decode().size == (6, 9)


def test_a_file_without_texts_stays_as_it_is_and_a_broken_one_is_left_to_pillow() -> None:
    plain = encode(PICTURE, "PNG")
    for cut in range(20):
        assert unneeded_parts(plain[: len(plain) - cut]) == {}
    data, _ = with_chunks(itxt("comment", "text"))
    for end in range(8, 60):
        with pytest.raises(ImageError):
            open_image(data[:end]).decode()


def test_what_is_behind_the_end_is_not_looked_at() -> None:
    padded = encode(PICTURE, "PNG") + bytes(1_000_000)
    assert unneeded_parts(padded) == {}
    np.testing.assert_array_equal(np.asarray(open_image(padded).decode()), np.asarray(PICTURE))


def test_the_file_is_not_copied_to_leave_a_text_out() -> None:
    """A large image waits with its file, whose bytes are counted once."""
    data, _ = with_chunks(png_chunk(b"tEXt", b"Software\0this"), png_chunk(b"IDAT", bytes(2_000_000)))
    tracemalloc.start()
    file = open_image(data)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000
    assert file.picture.size == PICTURE.size


@pytest.mark.parametrize(
    "chunks",
    [[png_chunk(b"tEXt", b"")] * 20_000, [png_chunk(b"tEXt", b""), png_chunk(b"prIv", bytes(200))] * 11_000],
    ids=["texts", "texts between others"],
)
def test_a_file_of_very_many_chunks_is_refused(chunks: list[bytes]) -> None:
    data, _ = with_chunks(*chunks)
    with pytest.raises(ValueError, match="thousands of pieces"):
        unneeded_parts(data)
    with pytest.raises(ImageError, match="thousands of pieces"):
        open_image(data)
