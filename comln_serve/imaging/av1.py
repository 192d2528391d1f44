"""Reads the frame size of an AV1 stream from its sequence headers (AV1, 5.5.1)."""

_SEQUENCE_HEADER = 1
_MOST_UNITS = 10_000


def coded_pixels(stream: bytes) -> int:
    """Pixels of the largest frame that the stream announces; 0 without a sequence header.

    Raises:
        ValueError: the stream has far more parts than a picture has.
    """
    most, at = 0, 0
    try:
        for _ in range(_MOST_UNITS):
            if at >= len(stream):
                return most
            head = stream[at]
            kind, has_size = head >> 3 & 15, head & 2
            at += 2 if head & 4 else 1
            size, at = _leb128(stream, at) if has_size else (len(stream), at)
            if kind == _SEQUENCE_HEADER:
                most = max(most, _frame_pixels(_Bits(stream, at)))
            at += size
    except IndexError:  # the stream is cut short; its decoder says so
        return most
    raise ValueError(f"more than {_MOST_UNITS} parts in one picture")


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
