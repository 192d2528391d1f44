"""Reads the sizes that a HEIC or AVIF file announces in the boxes of its container.

Both are ISO base media files (ISO/IEC 14496-12, 23008-12): boxes of a length, a type and a body. The libraries that
decode them report the picture's size after cropping, read metadata once for every picture in the file, and read the
same bytes as often as items refer to them. This module bounds what that can cost before a library gets the file.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from comln_serve.imaging.av1 import coded_pixels

_MOST_BOXES = 20_000
_MOST_EXTENTS = 20_000
_DEEPEST = 6  # stbl is in minf, mdia, trak, moov
# Items may refer to this many times the file's bytes: in harmless files, only a few overlap.
_READ_AGAIN = 2
# The first pictures of a sequence's tracks may: each is taken to be as long as the longest.
_SAMPLES_READ_AGAIN = 4
# Bytes of metadata and colour profiles, counted once for each picture that the library lists.
_MOST_METADATA = 64 * 2**20

# Bytes of EXIF data, which Pillow reads and writes anew when it opens an AVIF. Cameras write less than 64 kB.
_MOST_EXIF = 2**18

_METADATA = {b"Exif", b"mime", b"uri "}
_FULL = {b"meta"}  # boxes that begin with a version and flags
_PARENTS = {b"meta", b"iprp", b"ipco", b"moov", b"trak", b"mdia", b"minf", b"stbl"}


@dataclass
class _Item:
    kind: bytes = b""
    hidden: bool = False
    extents: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    in_idat: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # further ones, from its start


def announced_pixels(data: bytes) -> int:
    """The largest picture in a HEIC or AVIF file, before any cropping, in pixels.

    Raises:
        ValueError: the boxes are malformed, or would make a library read far more than the file
            has; the message says which.
    """
    try:
        return _Container(data).announced_pixels()
    except IndexError as error:
        raise ValueError("a box ends too early") from error


class _Container:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._items: dict[int, _Item] = {}
        self._sizes: list[int] = []
        self._profiles = 0
        self._first_samples: list[int] = []
        self._sample_sizes: list[int] = []
        self._left = _MOST_BOXES
        self._extents_left = _MOST_EXTENTS
        idat = 0
        for kind, start, end in self._boxes(0, len(data), _DEEPEST):
            match kind:
                case b"idat":
                    idat = start
                case b"colr":
                    self._profiles += end - start
                case b"iinf":
                    self._read_items(start, end)
                case b"iloc":
                    self._read_locations(start)
                case b"ispe":
                    self._sizes.append(self._int(start + 4, 4) * self._int(start + 8, 4))
                case b"stco" | b"co64":  # where the pictures of a sequence begin
                    if self._int(start + 4, 4):
                        self._first_samples.append(self._int(start + 8, 4 if kind == b"stco" else 8))
                case b"stsz":  # their bytes: of all of them, or 0 and then of each
                    self._sample_sizes.append(self._int(start + 4, 4) or self._int(start + 12, 4))
                case _:
                    pass
        for item in self._items.values():  # only now, as idat may be behind the list of what is in it
            item.extents += [(idat + start, count) for start, count in item.in_idat]

    def announced_pixels(self) -> int:
        located = [(item, start, n) for item in self._items.values() for start, n in item.extents]
        if sum(n for _, _, n in located) > _READ_AGAIN * len(self._data):
            raise ValueError("its items refer to more bytes than the file has")
        metadata = sum(n for item, _, n in located if item.kind in _METADATA) + self._profiles
        if (exif := sum(n for item, _, n in located if item.kind == b"Exif")) > _MOST_EXIF:
            raise ValueError(f"{exif} bytes of EXIF data, at most {_MOST_EXIF} are allowed")
        listed = sum(not item.hidden and item.kind not in _METADATA for item in self._items.values())
        if metadata * listed > _MOST_METADATA:
            raise ValueError(f"{metadata} bytes of metadata for each of {listed} pictures")
        if any(item.kind == b"iovl" for item in self._items.values()):
            raise ValueError("it is a collage of several pictures")
        sizes = [*self._sizes]
        sizes += [self._grid(item) for item in self._items.values() if item.kind == b"grid"]
        # libheif refuses HEVC frames larger than the boxes announce; libavif accepts such AV1.
        coded = [item.extents for item in self._items.values() if item.kind == b"av01"]
        longest = max(self._sample_sizes, default=0)
        if longest * len(self._first_samples) > _SAMPLES_READ_AGAIN * len(self._data):
            raise ValueError("its sequences refer to more bytes than the file has")
        coded += [[(start, longest)] for start in self._first_samples]
        sizes.append(coded_pixels(map(self._bytes, coded)))
        return max(sizes)

    def _boxes(self, at: int, end: int, deep: int = 0) -> Iterator[tuple[bytes, int, int]]:
        """Yield type, start and end of each box's body, and of boxes inside `_PARENTS` to the depth `deep`."""
        while at + 8 <= end:
            self._left -= 1
            if self._left < 0:
                raise ValueError(f"more than {_MOST_BOXES} boxes")
            size, kind, body = self._int(at, 4), self._data[at + 4 : at + 8], at + 8
            if size == 1:
                size, body = self._int(at + 8, 8), at + 16
            # The library reports a box that is cut short.
            after = min(at + size, end) if size else end
            if after < body:
                raise ValueError("a box is shorter than its own head")
            yield kind, body, after
            if deep and kind in _PARENTS:
                yield from self._boxes(body + 4 * (kind in _FULL), after, deep - 1)
            at = after

    def _read_items(self, start: int, end: int) -> None:
        at = start + (6 if self._data[start] == 0 else 8)
        for kind, body, _end in self._boxes(at, end):
            if kind == b"infe":
                wide = 2 * (self._data[body] > 2)
                item = self._item(self._int(body + 4, 2 + wide))
                item.kind = self._data[body + 8 + wide : body + 12 + wide]
                item.hidden = bool(self._data[body + 3] & 1)

    def _read_locations(self, start: int) -> None:
        version = self._data[start]
        sizes = self._int(start + 4, 2)
        offset, length, base, index = (sizes >> shift & 15 for shift in (12, 8, 4, 0))
        wide = 4 if version > 1 else 2
        at = start + 6 + wide
        for _item in range(self._int(start + 6, wide)):
            item = self._item(self._int(at, wide))
            at += wide
            extents = item.extents
            if version > 0:
                extents = item.in_idat if self._int(at, 2) & 15 == 1 else extents
                at += 2
            first = self._int(at + 2, base)
            count = self._int(at + 2 + base, 2)
            at += 4 + base
            self._extents_left -= count + 1
            if self._extents_left < 0:
                raise ValueError("the list of where its items are is too long")
            for _extent in range(count):
                at += index if version > 0 else 0
                extents.append((first + self._int(at, offset), self._int(at + offset, length) or len(self._data)))
                at += offset + length

    def _grid(self, item: _Item) -> int:
        """Pixels of a picture that is composed of tiles."""
        grid = self._bytes(item.extents)
        wide = 4 if grid[1] & 1 else 2
        sides = [grid[at : at + wide] for at in (4, 4 + wide)]
        return int.from_bytes(sides[0]) * int.from_bytes(sides[1])

    def _bytes(self, extents: list[tuple[int, int]]) -> bytes:
        return b"".join(self._data[start : start + count] for start, count in extents)

    def _item(self, number: int) -> _Item:
        return self._items.setdefault(number, _Item())

    def _int(self, at: int, width: int) -> int:
        if at + width > len(self._data):
            raise IndexError
        return int.from_bytes(self._data[at : at + width])
