"""Reads the directory of a TIFF file's first page, and bounds its tags, before Pillow reads it.

Pillow makes a Python object of each number in the tags, thirty times its size in the file, and a
larger one of each fraction. (TIFF 6.0, section 2; BigTIFF has wider fields.)
"""

from typing import Literal

# Room for the offsets and lengths of 16 x 16 tiles of an image of 64 million pixels.
_MOST_NUMBERS = 600_000
_MOST_ENTRIES = 4096
_FRACTION = 10  # memory of a fraction, in whole numbers

# Bytes of a value by the type of a tag. Pillow keeps types 1, 2, 6 and 7 as bytes.
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_BYTES, _FRACTIONS = {1, 2, 6, 7}, {5, 10}

_NEW_SUBFILE_TYPE, _TILE_WIDTH, _TILE_LENGTH, _DNG_VERSION = 254, 322, 323, 50706
_DIRECTORIES = {34665, 34853, 40965}  # EXIF, GPS, and EXIF's interoperability
_MOST_DIRECTORIES = 4


class TiffPage:
    """The first page of a TIFF or BigTIFF file.

    Attributes:
        tile_pixels: of one tile, which may be larger than the picture; 0 if it is in strips.
        raw: whether the page is the preview of a raw file, such as DNG, NEF and ARW.
    """

    def __init__(self, data: bytes) -> None:
        """Read its directories.

        Raises:
            ValueError: the file ends within a directory, or has far more numbers than an image needs;
                the message says which.
        """
        self._data = data
        self._order: Literal["little", "big"] = "little" if data[:2] == b"II" else "big"
        self._wide = 43 in data[2:4]
        self._numbers = 0
        self._values: dict[int, int] = {}
        self._found: list[int] = []
        self._read(self._int(8, 8) if self._wide else self._int(4, 4))
        values = self._values
        self.tile_pixels = values.get(_TILE_WIDTH, 0) * values.get(_TILE_LENGTH, 0)
        self.raw = _DNG_VERSION in values or bool(values.get(_NEW_SUBFILE_TYPE, 0) & 1)
        for count, where in enumerate(self._found):
            if count == _MOST_DIRECTORIES:
                raise ValueError(f"more than {_MOST_DIRECTORIES} directories of metadata")
            self._read(where)

    def _read(self, at: int) -> None:
        """Count the numbers in a directory, and keep single values."""
        width = 8 if self._wide else 4
        entries = self._int(at, 8 if self._wide else 2)
        if entries > _MOST_ENTRIES:
            raise ValueError(f"{entries} tags")
        at += 8 if self._wide else 2
        for _ in range(entries):
            tag, kind, count = self._int(at, 2), self._int(at + 2, 2), self._int(at + 4, width)
            size = _SIZES.get(kind, 0)
            if size and kind not in _BYTES:
                self._numbers += count * (_FRACTION if kind in _FRACTIONS else 1)
            if self._numbers > _MOST_NUMBERS:
                raise ValueError(f"more than {_MOST_NUMBERS} numbers in its tags")
            if 0 < size * count <= width:
                value = self._int(at + 4 + width, size)
                self._values.setdefault(tag, value)
                if tag in _DIRECTORIES:
                    self._found.append(value)
            at += 4 + 2 * width

    def _int(self, at: int, width: int) -> int:
        if at + width > len(self._data):
            raise ValueError("it ends within its directory")
        return int.from_bytes(self._data[at : at + width], self._order)
