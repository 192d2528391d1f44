"""Error lists and parameters that several routes share."""

import re
from typing import Annotated

from fastapi import Header, Path
from pydantic import AfterValidator, Field

from comln_serve.errors import ErrorCode

# Errors of any route that waits for the store or in a queue: the server may stop meanwhile.
WAITING_ERRORS = (ErrorCode.NOT_READY, ErrorCode.STORAGE_UNAVAILABLE)
# Of a body without images.
PLAIN_BODY_ERRORS = (
    ErrorCode.RECEIVE_TIMEOUT,
    ErrorCode.BODY_TOO_LARGE,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    ErrorCode.OVERLOADED,
)
BODY_ERRORS = (
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_IMAGE,
    ErrorCode.IMAGE_TOO_LARGE,
    ErrorCode.TOO_MANY_IMAGES,
    *PLAIN_BODY_ERRORS,
    ErrorCode.QUEUE_TIMEOUT,
    ErrorCode.INFERENCE_TIMEOUT,
    *WAITING_ERRORS,
)
ONE_CLASSIFIER_ERRORS = (
    ErrorCode.INVALID_REQUEST,  # FastAPI documents it for every route with a parameter
    ErrorCode.CLASSIFIER_NOT_FOUND,
    ErrorCode.OVERLOADED,
    ErrorCode.QUEUE_TIMEOUT,
    *WAITING_ERRORS,
)

CHANGE_ERRORS = (
    ErrorCode.CLASSIFIER_NOT_FOUND,
    ErrorCode.CANNOT_ADAPT,
    ErrorCode.MODEL_CHANGED,
    ErrorCode.TOO_MANY_CLASSIFIERS,
)
# Of a change, or a new classifier, that takes no images.
CHANGE_WITHOUT_IMAGES_ERRORS = (
    *ONE_CLASSIFIER_ERRORS,
    *CHANGE_ERRORS,
    ErrorCode.IDEMPOTENCY_MISMATCH,
    *PLAIN_BODY_ERRORS,
)

# `pattern` is for the document alone: Pydantic would report it as a regular expression.
_KEY_PATTERN = "^[!-~]{1,255}$"


def _a_key(key: str) -> str:
    if not re.fullmatch(_KEY_PATTERN, key):
        raise ValueError("must be 1 to 255 visible ASCII characters, without blanks")
    return key


Ref = Annotated[str, Path(description="Id, name or name@version of a classifier.")]
KeyHeader = Annotated[
    Annotated[str, AfterValidator(_a_key), Field(json_schema_extra={"pattern": _KEY_PATTERN})] | None,
    Header(
        alias="Idempotency-Key",
        description="1 to 255 visible ASCII characters. A repeated request with the same key makes "
        "nothing new; its answer has the header Idempotency-Replayed.",
    ),
]
