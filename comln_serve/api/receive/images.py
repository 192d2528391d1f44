"""Images as a request holds them."""

import base64
import re

from comln_serve.api.receive.limits import check_bytes
from comln_serve.configuration.settings import Settings
from comln_serve.engine.embedding.decoders import File
from comln_serve.errors import ServiceError, invalid

_MAX_SHOWN = 200
_DATA_URL = re.compile(r"data:[^,]{0,100};base64,", re.IGNORECASE)


def read_image(where: str, given: bytes | str, settings: Settings, *, partial: bool) -> File:
    """The bytes of an image file, given as such or in base64; in a partial request also the error of one that is
    refused.

    Args:
        where: the image's place in the request, for the error of a request that is refused for it.
    """
    try:
        where = "The image" if partial else where
        if isinstance(given, str):
            return from_base64(where, given, settings)
        check_bytes(where, len(given), settings)
    except ServiceError as error:
        if not partial:
            raise
        # A new one: the traceback would keep the body.
        return ServiceError(error.code, error.message, **error.detail)
    return given


def from_base64(where: str, text: str, settings: Settings) -> bytes:
    """Decode an image file, in base64 or as a data URL of it, as browsers make them.

    Raises:
        ServiceError: INVALID_REQUEST, the text is not base64; IMAGE_TOO_LARGE.
    """
    if url := _DATA_URL.match(text):
        text = text[url.end() :]
    elif text[:8].lower().startswith(("http://", "https://")):
        raise invalid(
            f"{where} is a URL, which the server does not fetch. Send the image file itself, in base64 or in a form.",
            received=text[:_MAX_SHOWN],
        )
    check_bytes(where, len(text) * 3 // 4 - text[-2:].count("="), settings)
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise invalid(
            f"{where} is not base64 ({error}). Send the image file's bytes in standard base64, "
            "without line breaks; data:image/...;base64, may stand before it."
        ) from error
