"""Reads the frame sizes of AV1 streams from their sequence headers (AV1, 5.5.1)."""

from collections.abc import Iterable, Iterator

_SEQUENCE_HEADER = 1
# In all streams of a file: each unit takes a microsecond to skip, and each header up to a millisecond to read.
_MOST_UNITS = 10_000
_MOST_HEADERS = 1000
# A variable-length number that begins with more zeros has no value (AV1, 4.10.3).
_MOST_ZEROS = 31


def coded_pixels(streams: Iterable[bytes]) -> int:
    """Pixels of the largest frame that a file's streams announce; 0 without a sequence header.

    Raises:
        ValueError: the streams have far more parts than a file's pictures have, or a number in a header has no value.
    """
    most = units = headers = 0
    for stream in streams:
        try:
            for kind, at in _units(stream):
                units += 1
                headers += kind == _SEQUENCE_HEADER
                if units > _MOST_UNITS or headers > _MOST_HEADERS:
                    raise ValueError(f"its pictures have more than {_MOST_UNITS} parts or {_MOST_HEADERS} headers")
                if kind == _SEQUENCE_HEADER:
                    most = max(most, _frame_pixels(_Bits(stream, at)))
        except IndexError:  # the stream is cut short; its decoder says so
            continue
    return most


def _units(stream: bytes) -> Iterator[tuple[int, int]]:
    """Yield the type of each unit (OBU) of a stream and where its content begins."""
    at = 0
    while at < len(stream):
        head = stream[at]
        at += 2 if head & 4 else 1
        size, at = _leb128(stream, at) if head & 2 else (len(stream), at)
        yield head >> 3 & 15, at
        at += size


def _leb128(stream: bytes, at: int) -> tuple[int, int]:
    """Read a LEB128 number: 7 bits a byte, lowest first. Returns it and the position after it."""
    value = 0
    for shift in range(0, 56, 7):
        value |= (stream[at] & 127) << shift
        at += 1
        if not stream[at - 1] & 128:
            break
    return value, at


class _Bits:
    def __init__(self, stream: bytes, start: int) -> None:
        self._stream, self._at = stream, 8 * start

    def take(self, count: int) -> int:
        """Read the next bits as a number, highest first."""
        value = 0
        for _ in range(count):
            value = value << 1 | self._stream[self._at >> 3] >> (7 - (self._at & 7)) & 1
            self._at += 1
        return value


def _frame_pixels(bits: _Bits) -> int:
    bits.take(4)  # seq_profile, still_picture
    if bits.take(1):  # reduced_still_picture_header
        bits.take(5)
    else:
        _skip_operating_points(bits)
    width_bits, height_bits = bits.take(4) + 1, bits.take(4) + 1
    return (bits.take(width_bits) + 1) * (bits.take(height_bits) + 1)


def _skip_operating_points(bits: _Bits) -> None:
    delay_bits = 0
    if bits.take(1):  # timing_info_present_flag
        bits.take(64)
        if bits.take(1):  # equal_picture_interval
            zeros = 0
            while not bits.take(1):
                zeros += 1
                if zeros > _MOST_ZEROS:
                    raise ValueError("a number in the header of a picture has no value")
            bits.take(zeros)
        if bits.take(1):  # decoder_model_info_present_flag
            delay_bits = bits.take(5) + 1
            bits.take(42)
    has_delays = bits.take(1)  # initial_display_delay_present_flag
    for _ in range(bits.take(5) + 1):
        bits.take(12)
        if bits.take(5) > 7:  # seq_level_idx
            bits.take(1)
        if delay_bits and bits.take(1):
            bits.take(2 * delay_bits + 1)
        if has_delays and bits.take(1):
            bits.take(4)
