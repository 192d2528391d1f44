"""Damaged image files are served or refused (never a 500), in bounded memory."""

import gc
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from comln_serve.imaging import FORMATS
from tests.support.engines import Serve
from tests.support.image_files import decode_image, encode, image_bytes
from tests.support.messages import adapt_form, predict_form
from tests.support.processes import forget_the_highest, memory

pytestmark = pytest.mark.slow

COUNT = 400  # of each format
MAX_PIXELS = 1_000_000
# A picture of that many pixels is decoded, converted and laid over a background: 4 bytes each, in
# a few copies. One of the largest size a header can claim would take gigabytes.
MEMORY = 100_000_000

# Widths and heights that a header may claim: none, allowed, too large by a little, by far.
CLAIMS = ((0, 0), (0, 65535), (999, 1000), (1001, 1000), (16383, 16383), (65535, 65535), (1, 2**31))
# Where the formats say how large the picture is: what comes before, and how it is written.
WHERE_SIZES_ARE = {
    "PNG": (b"IHDR", ">II"),
    "GIF": (b"GIF89a", "<HH"),
    "BMP": (b"\x28\0\0\0", "<II"),
    "JPEG": (b"\x00\x11\x08", ">HH"),  # a frame of three components; height first, as it happens
    "WEBP": (b"\x9d\x01\x2a", "<HH"),
    "HEIC": (b"ispe\0\0\0\0", ">II"),
    "AVIF": (b"ispe\0\0\0\0", ">II"),
}


def seeds(fmt: str) -> list[bytes]:
    """Valid files, with the parts people's files have: palettes, alpha, EXIF, several frames."""
    noise = image_bytes(size=(24, 18), fmt=fmt)
    image = decode_image(noise)
    exif = Image.Exif()
    exif[0x0112] = 6
    if fmt == "JPEG":
        return [noise, encode(image.convert("CMYK"), fmt, exif=exif, progressive=True)]
    if fmt == "BMP":
        return [noise, encode(image.quantize(16), fmt)]
    frames = [image.convert("RGBA").rotate(angle) for angle in (0, 45, 90)]
    if fmt == "HEIC":
        return [noise, encode(frames[0], fmt, exif=exif.tobytes())]
    return [noise, encode(frames[0], fmt, save_all=True, append_images=frames[1:], duration=10)]


def mutated(rng: np.random.Generator, fmt: str, file: bytes, other: bytes) -> bytes:
    """One file damaged in one of the ways files are, or are made to be."""
    data = bytearray(file)
    where = int(rng.integers(len(data)))
    match int(rng.integers(8)):
        case 0:  # some bits flipped, anywhere
            for position in rng.integers(len(data), size=int(rng.integers(1, 12))):
                data[position] ^= 1 << int(rng.integers(8))
        case 1:  # in the headers, where it matters most
            for position in rng.integers(min(64, len(data)), size=int(rng.integers(1, 4))):
                data[position] = int(rng.integers(256))
        case 2:
            del data[where:]
        case 3:
            data[where:] = other[int(rng.integers(len(other))) :]
        case 4:
            data[where:where] = rng.bytes(int(rng.integers(1, 200)))
        case 5:  # a piece of itself, once more, elsewhere
            piece = data[where : where + int(rng.integers(1, 80))]
            elsewhere = int(rng.integers(len(data)))
            data[elsewhere:elsewhere] = piece
        case 6:  # what may be a length is another one
            length = struct.pack(">I", int(rng.choice([0, 1, 255, 2**16, 2**31 - 1, 2**32 - 1])))
            data[where : where + 4] = length if rng.integers(2) else length[::-1]
        case _:
            return claiming(fmt, bytes(data), *CLAIMS[int(rng.integers(len(CLAIMS)))])
    return bytes(data)


def claiming(fmt: str, file: bytes, width: int, height: int) -> bytes:
    """The file with another size in its header; of PNG with the checksum that belongs to it."""
    if fmt == "TIFF":
        return claiming_tiff(file, width, height)
    mark, how = WHERE_SIZES_ARE[fmt]
    at = file.find(mark) + len(mark)
    if at < len(mark):
        return file  # of another kind: extended WebP, CMYK
    most = 2 ** (8 * struct.calcsize(how) // 2) - 1
    size = struct.pack(how, min(width, most), min(height, most))
    data = bytearray(file)
    data[at : at + len(size)] = size
    if fmt == "PNG":
        data[at + 13 : at + 17] = struct.pack(">I", zlib.crc32(data[at - 4 : at + 13]))
    return bytes(data)


def claiming_tiff(file: bytes, width: int, height: int) -> bytes:
    """The file with other numbers in its tags 256 and 257."""
    data = bytearray(file)
    for tag, side in ((256, width), (257, height)):
        at = file.find(struct.pack("<HHI", tag, 4, 1)) + 8
        data[at : at + 4] = struct.pack("<I", side)
    return bytes(data)


@pytest.fixture
def client(serve: Serve) -> TestClient:
    client = serve(max_image_pixels=MAX_PIXELS)
    client.post("/adapt", **adapt_form(name="known")).raise_for_status()
    return client


@pytest.mark.parametrize("fmt", FORMATS)
def test_damaged_images_are_served_or_refused_in_bounded_memory(client: TestClient, fmt: str) -> None:
    rng = np.random.default_rng(FORMATS.index(fmt))
    own, foreign = seeds(fmt), [data for other in FORMATS for data in seeds(other)]
    client.post("/predict", **predict_form(*own)).raise_for_status()
    gc.collect()
    before = forget_the_highest("self") if Path("/proc/self/clear_refs").exists() else None
    statuses: set[int] = set()
    for _ in range(COUNT):
        data = mutated(rng, fmt, own[int(rng.integers(len(own)))], foreign[int(rng.integers(len(foreign)))])
        answer = client.post("/predict", **predict_form(data))
        assert answer.status_code in (200, 413, 422), (data, answer.text)
        statuses.add(answer.status_code)
    assert statuses == {200, 413, 422}, "neither all harmless nor all hopeless"
    if before is not None:
        assert memory("self", "VmHWM") - before < MEMORY
    assert client.post("/predict", **predict_form(*own)).status_code == 200
    assert client.get("/health/ready").json()["classifiers"] == 1


@pytest.mark.parametrize("size", CLAIMS[4:])
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_huge_picture_that_is_only_claimed_is_refused(client: TestClient, fmt: str, size: tuple[int, int]) -> None:
    claims = [claiming(fmt, file, *size) for file in seeds(fmt)]
    changed = [claim for claim, file in zip(claims, seeds(fmt), strict=True) if claim != file]
    assert changed
    for data in changed:
        answer = client.post("/predict", **predict_form(data))
        assert answer.status_code in (413, 422), answer.text
        assert answer.json()["error"]["code"] in ("image_too_large", "invalid_image")


def test_text_in_a_picture_that_unpacks_to_too_much_is_skipped_or_refused(client: TestClient) -> None:
    bomb = b"zTXtComment\0\0" + zlib.compress(bytes(200_000_000), 9)
    chunk = struct.pack(">I", len(bomb) - 4) + bomb + struct.pack(">I", zlib.crc32(bomb))
    file = seeds("PNG")[0]
    start = file.index(b"IDAT") - 4
    answer = client.post("/predict", **predict_form(file[:start] + chunk + file[start:]))
    assert answer.status_code in (200, 422), answer.text
    assert client.post("/predict", **predict_form(file)).status_code == 200
