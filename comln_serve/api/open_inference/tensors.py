"""Encodes and decodes binary tensors of datatype BYTES: elements in order, each preceded by its
length in 4 bytes, little-endian.
"""

from collections.abc import Iterable, Iterator

from comln_serve.errors import ErrorCode, ServiceError

_LENGTH = 4


def pack(elements: Iterable[bytes]) -> bytes:
    """Encode the elements of a tensor."""
    return b"".join(part for item in elements for part in (len(item).to_bytes(_LENGTH, "little"), item))


def unpack(data: memoryview, count: int) -> Iterator[memoryview]:
    """Decode the `count` elements of a tensor, as views of `data`: nothing is copied.

    Raises:
        ServiceError: INVALID_REQUEST, `data` does not hold exactly `count` elements.
    """
    position = 0
    for number in range(count):
        start = position + _LENGTH
        position = start + int.from_bytes(data[position:start], "little")
        if start > len(data) or position > len(data):
            raise _malformed(f"element {number + 1} of {count} ends after the tensor's last byte")
        yield data[start:position]
    if position < len(data):
        raise _malformed(f"{len(data) - position} bytes follow the last of {count} elements")


def _malformed(what: str) -> ServiceError:
    return ServiceError(
        ErrorCode.INVALID_REQUEST,
        f"The binary tensor cannot be read: {what}. Each element is its length in 4 bytes, "
        "little-endian, and its bytes; 'shape' says how many there are.",
    )
