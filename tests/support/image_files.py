"""Image files of many formats, made for tests, honest and not."""

import io
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pillow_heif
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter

from comln_serve.imaging import FORMATS, Preprocessing, open_image, prepare_views


def encode(image: Image.Image, fmt: str, **options: Any) -> bytes:
    """The image as a file of a format that Pillow writes, or of HEIC."""
    buffer = io.BytesIO()
    if fmt == "HEIC":
        pillow_heif.from_pillow(image).save(buffer, **options)
    else:
        image.save(buffer, fmt, **options)
    return buffer.getvalue()


def decode_image(data: bytes, background: tuple[int, int, int] = (255, 255, 255), **options: Any) -> Image.Image:
    """The picture in a file, at its own size, as the server decodes it."""
    return open_image(data, **options).decode(background)


def prepare_image(data: bytes, policy: Preprocessing, *, formats: Sequence[str] = FORMATS) -> NDArray[np.uint8]:
    """The view of an image file that predictions see: (image_size, image_size, 3)."""
    return prepare_views(data, policy.of_predictions, formats=formats)[0]


def image_bytes(
    colour: tuple[int, int, int] = (200, 30, 30), size: tuple[int, int] = (20, 20), fmt: str = "PNG", seed: int = 0
) -> bytes:
    """A noisy image of one dominant colour."""
    noise = np.random.default_rng(seed).integers(-20, 20, (size[1], size[0], 3))
    pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
    return encode(Image.fromarray(pixels), fmt)


def colour_support(shots: int = 3) -> list[tuple[bytes, str]]:
    """Support images of the classes red, green and blue."""
    colours = {"red": (220, 30, 30), "green": (30, 220, 30), "blue": (30, 30, 220)}
    return [(image_bytes(colour, seed=seed), label) for label, colour in colours.items() for seed in range(shots)]


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_claiming(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims any size."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = png_chunk(b"IDAT", zlib.compress(bytes(64)))
    return b"\x89PNG\r\n\x1a\n" + header + pixels + png_chunk(b"IEND", b"")


def with_text(png: bytes, name: bytes, behind: bytes) -> bytes:
    """A PNG with one more text, behind its last chunk of a kind."""
    start = png.rindex(behind) - 4
    end = start + 12 + struct.unpack_from(">I", png, start)[0]
    return png[:end] + png_chunk(b"tEXt", name + b"\0x") + png[end:]


def box(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body) + 8) + kind + body


def with_size(data: bytes, old: tuple[int, int], new: tuple[int, int]) -> bytes:
    """A HEIC or AVIF file that announces another size than its coded picture has."""
    announced = b"ispe\0\0\0\0" + struct.pack(">II", *old)
    assert announced in data
    return data.replace(announced, b"ispe\0\0\0\0" + struct.pack(">II", *new))


def tiff(tags: dict[int, tuple[int, tuple[int, ...]]], pixels: bytes, big: bool = False) -> bytes:
    """A little-endian TIFF or BigTIFF file by hand: {tag: (type, values)}; 273 is filled in.

    Args:
        pixels: uncompressed, in one strip right behind the header.
    """
    sizes = {1: "B", 3: "H", 4: "I", 7: "B", 16: "Q"}
    start = 16 if big else 8
    tags = {**tags, 273: (4, (start,)), 279: (4, (len(pixels),))}
    width, count = ("Q", "Q") if big else ("I", "H")
    directory = start + len(pixels)
    values = directory + struct.calcsize("<" + count) + len(tags) * (20 if big else 12)
    values += struct.calcsize(width)
    head = struct.pack("<2sHHHQ", b"II", 43, 8, 0, directory) if big else (struct.pack("<2sHI", b"II", 42, directory))
    entries, more = struct.pack("<" + count, len(tags)), b""
    for tag, (kind, numbers) in sorted(tags.items()):
        value = struct.pack(f"<{len(numbers)}{sizes[kind]}", *numbers)
        if len(value) > struct.calcsize(width):
            where, more = values + len(more), more + value
            value = struct.pack("<" + width, where)
        entries += struct.pack("<HH" + width, tag, kind, len(numbers))
        entries += value.ljust(struct.calcsize(width), b"\0")
    return head + pixels + entries + bytes(struct.calcsize(width)) + more


def tiff_of(
    samples: np.ndarray,
    *,
    photometric: int | None = None,
    bits: int | None = None,
    sample_format: int = 1,
    big: bool = False,
    **tags: int,
) -> bytes:
    """A TIFF file of samples (height, width) or (height, width, channels)."""
    height, width, channels = (*samples.shape, 1)[:3]
    photometric = (2 if channels > 1 else 1) if photometric is None else photometric
    bits = samples.dtype.itemsize * 8 if bits is None else bits
    known = {
        256: (4, (width,)),
        257: (4, (height,)),
        258: (3, (bits,) * channels),
        259: (3, (1,)),
        262: (3, (photometric,)),
        277: (3, (channels,)),
        278: (4, (height,)),
        339: (3, (sample_format,) * channels),
    }
    known |= {int(tag[1:]): (4, (value,)) for tag, value in tags.items()}
    return tiff(known, samples.tobytes(), big)


def frame(photo: bytes, number: int) -> bytes:
    """A photo as a hand-held camera takes it a moment later: moved, in other light, not as sharp."""
    image = Image.open(io.BytesIO(photo)).convert("RGB")
    width, height = image.size
    moved = image.crop((3 * number, 2 * number, width - 2 * number, height - 3 * number))
    moved = ImageEnhance.Brightness(moved).enhance(1 - 0.06 * number).filter(ImageFilter.GaussianBlur(0.4 * number))
    return encode(moved, "JPEG", quality=90)
