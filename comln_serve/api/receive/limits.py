"""Checks of the limits on one request and its answer. Each error names the limit."""

from collections.abc import AsyncGenerator, Iterable
from heapq import nlargest

from fastapi import Request
from pydantic_core import to_json

from comln_serve.configuration.settings import Settings
from comln_serve.errors import ErrorCode, ServiceError, invalid

MOST_ANSWER_BYTES = 16 * 2**20


def json_limit(settings: Settings) -> int:
    """Bytes of one JSON body, which is a body, too."""
    return min(settings.max_json_bytes, settings.max_body_bytes)


async def body_chunks(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    """Yield the body as it arrives, up to `limit` bytes.

    Raises:
        ServiceError: the body is compressed, it or Content-Length is over the limit, or it broke off.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise ServiceError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Encoding is {encoding[:100]!r}; send the body as it is. Images are compressed already.",
        )
    # Stripped and cut, as int() refuses thousands of digits, leading zeros included.
    declared = request.headers.get("content-length", "").lstrip("0")[:20]
    if declared.isdecimal() and int(declared) > limit:
        raise body_too_large(int(declared), limit)
    received, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise invalid("The request body broke off.")
        chunk, more = message.get("body", b""), message.get("more_body", False)
        received += len(chunk)
        if received > limit:
            raise body_too_large(received, limit)
        if chunk:
            yield chunk


def check_labels(labels: Iterable[str], settings: Settings) -> None:
    """Refuse labels of which one has more than `max_label_length` characters."""
    for position, label in enumerate(labels, 1):
        if len(label) > settings.max_label_length:
            raise invalid(
                f"Label {position} has {len(label)} characters; at most {settings.max_label_length} are allowed.",
                received_length=len(label),
                allowed_length=settings.max_label_length,
            )


def check_count(count: int, settings: Settings) -> None:
    """Refuse more than `max_images` images."""
    if count > settings.max_images:
        raise too_many(str(count), settings.max_images)


def too_many(received: str, allowed: int) -> ServiceError:
    """The error for more images than allowed."""
    return ServiceError(
        ErrorCode.TOO_MANY_IMAGES,
        f"Received {received} images or fields; at most {allowed} images are allowed in a request. Split it.",
        allowed_images=allowed,
    )


def check_answer(images: int, size: int) -> None:
    """Refuse a request whose answer would exceed `MOST_ANSWER_BYTES`, before it is written.

    Args:
        size: upper bound of the answer's bytes.
    """
    if size > MOST_ANSWER_BYTES:
        raise ServiceError(
            ErrorCode.TOO_MANY_IMAGES,
            f"The answer for {images} images with this classifier's labels could have {size} bytes; at most "
            f"{MOST_ANSWER_BYTES} are sent. Send fewer images at a time, or have fewer classes listed for each.",
            answer_bytes=size,
            allowed_bytes=MOST_ANSWER_BYTES,
        )


def bytes_of_longest(labels: Iterable[str], count: int) -> int:
    """Bytes of the `count` longest labels in JSON."""
    return sum(nlargest(count, (len(to_json(label)) for label in labels)))


def check_bytes(where: str, size: int, settings: Settings) -> None:
    """Refuse an image file over `max_image_bytes`."""
    if size > settings.max_image_bytes:
        raise ServiceError(
            ErrorCode.IMAGE_TOO_LARGE,
            f"{where} has {size} bytes; at most {settings.max_image_bytes} are allowed. Send a smaller image.",
            received_bytes=size,
            allowed_bytes=settings.max_image_bytes,
        )


def body_too_large(received: int, limit: int) -> ServiceError:
    """The error for a body, or the JSON in it, of more bytes than allowed."""
    return ServiceError(
        ErrorCode.BODY_TOO_LARGE,
        f"The request body has {received} bytes or more; at most {limit} are allowed. Send less "
        "in one request, such as fewer or smaller images; multipart allows more than JSON. The operator can raise "
        "--max-body-bytes and --max-json-bytes.",
        received_bytes=received,
        allowed_bytes=limit,
    )
