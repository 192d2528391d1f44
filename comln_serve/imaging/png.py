"""Finds what would only cost memory in a PNG file (PNG, third edition, 11.3)."""

import zlib

_HEAD, _LENGTH, _CRC = 8, 4, 4  # bytes of the file's signature, of a chunk's length, and of its checksum
# Chunks that are looked at: as many as there may be with 64 bytes each, and some more; and parts to leave out.
_MOST_CHUNKS, _BYTES_OF_A_CHUNK = 10_000, 64
_MOST_PARTS = 10_000
_TEXTS, _PROFILE, _END = (b"tEXt", b"zTXt", b"iTXt"), b"iCCP", b"IEND"
# Texts that may say how the picture is to be turned (see `orientation`), and characters that one may have.
_OF_ORIENTATION = (b"XML:com.adobe.xmp\0", b"Raw profile type exif\0")
_MOST_TEXT = 2**18


def unneeded_parts(png: bytes) -> dict[int, int]:
    """Start and end of each part of the file that is to be skipped: its colour profiles and its texts, but for one of
    each kind that may have the orientation.

    Pillow keeps up to 64 million characters of a file of 65 kB, as each of its texts is compressed, and inflates any
    number of profiles.

    Raises:
        ValueError: it is in too many pieces.
    """
    parts, at, start, wanted = dict[int, int](), _HEAD, 0, set[bytes](_OF_ORIENTATION)
    for _ in range(_MOST_CHUNKS + len(png) // _BYTES_OF_A_CHUNK):
        kind = png[at + _LENGTH : at + _LENGTH + 4]
        if len(kind) < 4 or kind == _END:  # Pillow reads no further either; some files are padded behind it
            return parts
        end = at + _LENGTH + 4 + int.from_bytes(png[at : at + _LENGTH]) + _CRC
        body = slice(at + _LENGTH + 4, end - _CRC)
        if kind == _PROFILE or (kind in _TEXTS and not _has_orientation(png[body], kind, wanted)):
            if parts.get(start) != at:
                start = at
            parts[start] = end
            if len(parts) > _MOST_PARTS:
                break
        at = end
    raise ValueError("it is in thousands of pieces")


def _has_orientation(text: bytes, kind: bytes, wanted: set[bytes]) -> bool:
    """Whether a text is one of those wanted, and not too long; then it is wanted no more."""
    keyword = next((one for one in wanted if text.startswith(one)), None)
    if keyword is None:
        return False
    wanted.remove(keyword)
    # Behind its keyword zTXt has a method of compression; iTXt has whether it is compressed, the method and two texts.
    content = text[len(keyword) :]
    if kind == b"iTXt" and content[:1] == b"\1":
        content = content[2:].split(b"\0", 2)[-1]
    elif kind == b"zTXt":
        content = content[1:]
    else:
        return len(content) <= _MOST_TEXT
    try:
        return len(zlib.decompressobj().decompress(content, _MOST_TEXT + 1)) <= _MOST_TEXT
    except zlib.error:
        return False
