"""How a picture is to be turned, by its EXIF or XMP data.

Pillow would read, and write anew, all of a file's EXIF data for this, in Python: seconds and a gigabyte for a hostile
file.
"""

import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from PIL import Image

TURNS: Mapping[int, Image.Transpose] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes a picture upright, by its orientation."""

_PREFIX = re.compile(b"(?:Exif\0\0)*")  # in most formats; some programs write it twice
_ORIENTATION = 274
# By type: short, long.
_NUMBERS = {3: "H", 4: "I"}
_IN_XMP = r'tiff:Orientation(?:="|>)([0-9])'
# Where ImageMagick writes EXIF data in a PNG: three lines of other things, then hexadecimal digits.
_RAW_PROFILE = "Raw profile type exif"


def orientation(info: Mapping[Any, Any]) -> int:
    """Orientation of a decoded picture, 1 to 8 (EXIF 2.32, tag 274); 1 if the data lack it or are broken.

    Args:
        info: what Pillow knows of the picture.
    """
    found = _in_exif(_exif(info))
    if found is None:
        found = _in_xmp(info.get("XML:com.adobe.xmp") or info.get("xmp"))
    return found or 1


def _exif(info: Mapping[Any, Any]) -> bytes:
    exif, raw = info.get("exif"), info.get(_RAW_PROFILE)
    if isinstance(exif, bytes):
        return exif
    with suppress(ValueError):  # no such digits
        return bytes.fromhex("".join(raw.split("\n")[3:])) if isinstance(raw, str) else b""
    return b""


def _in_exif(exif: bytes) -> int | None:
    """The orientation in the first directory of EXIF data."""
    prefix = _PREFIX.match(exif)
    tiff = memoryview(exif)[prefix.end() if prefix else 0 :]  # not a copy: it may have megabytes
    order = "<" if bytes(tiff[:2]) == b"II" else ">"
    with suppress(struct.error):  # broken data
        (start,) = struct.unpack_from(f"{order}4xI", tiff)
        (entries,) = struct.unpack_from(f"{order}H", tiff, start)
        for at in range(start + 2, start + 2 + 12 * entries, 12):
            tag, kind, count = struct.unpack_from(f"{order}HHI", tiff, at)
            if tag == _ORIENTATION and count == 1 and kind in _NUMBERS:
                return int(struct.unpack_from(order + _NUMBERS[kind], tiff, at + 8)[0])
    return None


def _in_xmp(xmp: object) -> int | None:
    if isinstance(xmp, bytes):
        found = re.search(_IN_XMP.encode(), xmp)
    else:
        found = re.search(_IN_XMP, xmp) if isinstance(xmp, str) else None
    return None if found is None else int(found[1])
