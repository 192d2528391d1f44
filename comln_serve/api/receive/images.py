"""Images as a request holds them."""

import base64
import binascii
import re
from collections.abc import Callable
from typing import TypeVar

from comln_serve.api.receive.limits import check_bytes
from comln_serve.configuration.settings import Settings
from comln_serve.engine.embedding.decoders import File
from comln_serve.errors import ErrorCode, ServiceError

_Given = TypeVar("_Given")
_DATA_URL = re.compile(r"data:[^,]{0,100};base64,", re.IGNORECASE)


def read_image(
    read: Callable[[str, _Given, Settings], bytes], where: str, given: _Given, settings: Settings, *, partial: bool
) -> File:
    """The bytes of an image file; in a partial request also the error of one that is refused.

    Args:
        read: a function below.
        where: the image's place in the request, for the error of a request that is refused for it.
    """
    if not partial:
        return read(where, given, settings)
    try:
        return read("The image", given, settings)
    except ServiceError as error:
        # A new one: the traceback would keep the body.
        return ServiceError(error.code, error.message, **error.detail)


def from_file(where: str, content: bytes, settings: Settings) -> bytes:
    """Check an image file.

    Raises:
        ServiceError: IMAGE_TOO_LARGE.
    """
    check_bytes(where, len(content), settings)
    return content


def from_base64(where: str, text: str, settings: Settings) -> bytes:
    """Decode an image file, in base64 or as a data URL of it, as browsers make them.

    Args:
        where: its place in the request, for error messages.

    Raises:
        ServiceError: INVALID_REQUEST, the text is not base64; IMAGE_TOO_LARGE.
    """
    if url := _DATA_URL.match(text):
        text = text[url.end() :]
    check_bytes(where, len(text) * 3 // 4 - text[-2:].count("="), settings)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ServiceError(
            ErrorCode.INVALID_REQUEST,
            f"{where} is not base64 ({error}). Send the image file's bytes in standard base64, "
            "without line breaks; data:image/...;base64, may stand before it.",
        ) from error
