"""Image files made to cost a library far more time or memory than their size suggests."""

import struct

from PIL import Image

from tests.support.image_files import encode, png_chunk


def plain(side: int = 200) -> Image.Image:
    return Image.new("RGB", (side, side), (200, 30, 30))


def noise() -> Image.Image:
    return Image.effect_noise((64, 64), 60).convert("RGB")


def jpeg() -> bytes:
    return encode(noise(), "JPEG")


def webp_bomb() -> bytes:
    """64 megapixels in less than 3 kB."""
    return encode(Image.new("RGB", (8000, 8000)), "WEBP", lossless=True)


def jpeg_of_scans(count: int, picture: Image.Image | None = None) -> bytes:
    """A progressive JPEG whose last scan is repeated so many times."""
    data = encode(picture or noise(), "JPEG", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + count * last + data[-2:]


def jpeg_of_separate_scans(side: int, repeated: int = 0) -> bytes:
    """A JPEG that is not progressive, with a scan for each of its three components, of which the last is repeated."""
    grey = encode(Image.new("L", (side, side), 90), "JPEG")
    frame, scan = grey.index(b"\xff\xc0"), grey.index(b"\xff\xda")
    components = b"".join(bytes([number, 0x11, 0]) for number in (1, 2, 3))
    header = b"\xff\xc0\0\x11" + grey[frame + 4 : frame + 9] + b"\3" + components
    scans = [b"\xff\xda\0\x08\1" + bytes([number, 0, 0, 63, 0]) + grey[scan + 10 : -2] for number in (1, 2, 3)]
    return grey[:frame] + header + grey[frame + 13 : scan] + b"".join(scans) + repeated * scans[-1] + b"\xff\xd9"


def bmp_in_runs(width: int, height: int, run: int = 255) -> bytes:
    data = bytearray(encode(Image.new("P", (width, height)), "BMP"))
    (pixels,) = struct.unpack_from("<I", data, 10)
    struct.pack_into("<I", data, 30, 1)  # the compression
    row = bytes([run, 5]) * (width // run) + bytes([width % run, 5, 0, 0])
    return bytes(data[:pixels]) + row * height + b"\0\1"


def padded_jpeg() -> bytes:
    data = jpeg()
    return data[:2] + 100_000 * b"\xff" + data[2:]


def jpeg_of_segments() -> bytes:
    """Very many comments of one byte."""
    data = jpeg()
    return data[:2] + 50_000 * b"\xff\xfe\0\3x" + data[2:]


def png_of_chunks() -> bytes:
    """Very many texts of one byte, before the pixels."""
    data = encode(plain(), "PNG")
    return data[:33] + 50_000 * png_chunk(b"tEXt", b"a\0b") + data[33:]


def exif_of(entries: int, order: str = ">") -> bytes:
    """An EXIF block that says "turn the picture", with so many tags in all. `order`: of the bytes, as in `struct`."""
    tags = [struct.pack(f"{order}HHIHH", 274, 3, 1, 6, 0)]
    tags += [struct.pack(f"{order}HHII", 40_000 + n % 25_000, 4, 1, n) for n in range(entries - 1)]
    begin = b"Exif\0\0" + (b"MM\0*" if order == ">" else b"II*\0")
    return begin + struct.pack(f"{order}IH", 8, entries) + b"".join(tags) + bytes(4)
