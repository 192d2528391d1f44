"""What several routes have in common."""

from typing import Annotated

from fastapi import Header, Path, Response

from comln_serve.api import schemas
from comln_serve.api.context import current_record
from comln_serve.engine.adaptation import Adapted
from comln_serve.errors import ErrorCode

BODY_ERRORS = (
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_IMAGE,
    ErrorCode.IMAGE_TOO_LARGE,
    ErrorCode.TOO_MANY_IMAGES,
    ErrorCode.RECEIVE_TIMEOUT,
    ErrorCode.BODY_TOO_LARGE,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    ErrorCode.OVERLOADED,
    ErrorCode.QUEUE_TIMEOUT,
    ErrorCode.INFERENCE_TIMEOUT,
    ErrorCode.STORAGE_UNAVAILABLE,
)
ONE_CLASSIFIER_ERRORS = (
    ErrorCode.INVALID_REQUEST,  # FastAPI documents one wherever there is a parameter
    ErrorCode.CLASSIFIER_NOT_FOUND,
    ErrorCode.STORAGE_UNAVAILABLE,
)

Ref = Annotated[str, Path(description="Id, name or name@version of a classifier.")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[!-~]{1,255}$",
        description="1 to 255 visible ASCII characters. Repeating a request with its key makes "
        "nothing new; the answer then has the header Idempotency-Replayed.",
    ),
]


def answer(adapted: Adapted, response: Response) -> schemas.AdaptResponse:
    """The answer to a request that has made, or changed, a classifier."""
    record = current_record()
    record.stages_ms = adapted.timings_ms
    if adapted.replayed:
        response.headers["Idempotency-Replayed"] = "true"
    else:
        record.model = adapted.classifier.model
    info = schemas.ClassifierDetail.of(adapted.classifier)
    return schemas.AdaptResponse(**info.model_dump(), timings_ms=adapted.timings_ms)
