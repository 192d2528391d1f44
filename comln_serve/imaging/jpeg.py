"""What a JPEG file makes Pillow and libjpeg do, read from its segments (ITU-T T.81, annex B)."""

import re
import struct

# A progressive JPEG has about ten scans. Each scan costs a pass over all pixels, even one of 15 bytes.
_MOST_SCANS, _ORDINARY_SCANS = 200, 16
# Pillow reads the EXIF data of a JPEG when it opens the file, from segments of at most 64 kB. Cameras write one segment
# of about fifty entries.
_EXIF_SEGMENT = re.compile(rb"\xff\xe1..Exif\0\0", re.DOTALL)
_MOST_EXIF_SEGMENTS, _MOST_EXIF_ENTRIES = 4, 1000

# Segments and fill bytes of a header that are looked at: Pillow reads fewer.
_MOST_PIECES = 10_000
_FILL, _START_OF_SCAN = 0xFFFF, 0xFFDA
_FRAMES = {0xFFC0 + n for n in (0, 1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15)}  # headers of a picture
_PROGRESSIVE = {0xFFC2, 0xFFC6, 0xFFCA, 0xFFCE}
# Segments that Pillow goes over by their length.
_SEGMENTS = {*range(0xFFC0, 0xFFD0), *range(0xFFDA, 0xFFF0), 0xFFFE} - {0xFFC8}


def passes(jpeg: bytes) -> int:
    """How often libjpeg goes over a whole picture to decode it, in units of what is usual for a progressive one.

    0: it reads the picture in one scan, row by row. Otherwise it keeps all coefficients of the picture, at its full
    size, until it has read the last scan.

    Raises:
        ValueError: its scans or EXIF data would take long to read; the message says why.
    """
    header_end, row_by_row = _header(jpeg)
    _check_exif(jpeg, header_end)
    if row_by_row:
        return 0
    # An upper bound: thumbnails, and pictures behind the first, have scans, too.
    if (scans := jpeg.count(b"\xff\xda")) > _MOST_SCANS:
        raise ValueError(f"it has {scans} scans, at most {_MOST_SCANS} are allowed")
    return max(1, scans // _ORDINARY_SCANS)


def _check_exif(jpeg: bytes, header_end: int) -> None:
    segments = list(_EXIF_SEGMENT.finditer(jpeg, 0, header_end))
    if len(segments) > _MOST_EXIF_SEGMENTS:
        raise ValueError(f"its EXIF data are in {len(segments)} segments, at most {_MOST_EXIF_SEGMENTS} are allowed")
    for segment in segments[:1]:
        start = segment.end()
        order = "<" if jpeg.startswith(b"II", start) else ">"
        try:
            (offset,) = struct.unpack_from(f"{order}4xI", jpeg, start)
            (entries,) = struct.unpack_from(f"{order}H", jpeg, start + offset)
        except struct.error:  # ignores broken EXIF data, as the image can still be read
            return
        if entries > _MOST_EXIF_ENTRIES:
            raise ValueError(f"its EXIF block has {entries} entries, at most {_MOST_EXIF_ENTRIES} are allowed")


def _header(jpeg: bytes) -> tuple[int, bool]:
    """Where the first scan begins, and whether libjpeg reads the picture in that scan, row by row.

    It does unless the picture is progressive, or has components that the scan does not have. What is behind that scan,
    such as the video of a motion photo, is not read then. If a header is unusual, it counts as reaching to the end of
    the file, and the picture as not read row by row.
    """
    at, several = 2, True
    components = 0
    for _ in range(_MOST_PIECES):
        if len(jpeg) <= at + 9:
            break
        marker, length = struct.unpack_from(">HH", jpeg, at)
        if marker == _FILL:
            at += 1
            continue
        if marker not in _SEGMENTS:
            break
        if marker in _FRAMES:
            several, components = marker in _PROGRESSIVE, jpeg[at + 9]
        elif marker == _START_OF_SCAN:
            return at, not several and jpeg[at + 4] == components
        at += 2 + length
    return len(jpeg), False
