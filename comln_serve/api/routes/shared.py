"""What several routes have in common."""

from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar

from fastapi import Header, Path, Request, Response
from pydantic import BaseModel

from comln_serve.api import schemas
from comln_serve.api.context import current_record
from comln_serve.api.work import work
from comln_serve.engine.adaptation import Adapted
from comln_serve.engine.cancellation import Cancellation
from comln_serve.errors import ErrorCode

_Result = TypeVar("_Result")

# Of whatever waits for the store or for its turn: the server may stop meanwhile.
WAITING_ERRORS = (ErrorCode.NOT_READY, ErrorCode.STORAGE_UNAVAILABLE)
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
    *WAITING_ERRORS,
)
ONE_CLASSIFIER_ERRORS = (
    ErrorCode.INVALID_REQUEST,  # FastAPI documents one wherever there is a parameter
    ErrorCode.CLASSIFIER_NOT_FOUND,
    *WAITING_ERRORS,
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


async def change(request: Request, call: Callable[[], _Result]) -> _Result:
    """Let the engine write to the store, on a thread of its own pool: writers wait for each other,
    and what reads is answered meanwhile."""
    with request.app.state.requests.admit():
        return await work(request, lambda _cancellation: call())


async def make(
    request: Request, call: Callable[[Cancellation], Adapted], *, status: int
) -> Response:
    """Let the engine make, or change, a classifier, and answer with it and that status."""
    record = current_record()

    def written(cancellation: Cancellation) -> Response:
        adapted = call(cancellation)
        record.stages_ms = adapted.timings_ms
        headers = {"Idempotency-Replayed": "true"} if adapted.replayed else None
        if not adapted.replayed:
            record.model = adapted.classifier.model
        body = schemas.AdaptResponse.of(adapted.classifier, timings_ms=adapted.timings_ms)
        return as_json(body, status, headers)

    with request.app.state.requests.admit():
        return await work(request, written)


def as_json(
    body: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer as bytes, which the framework would make of it on the event loop, checking it once
    more."""
    return Response(body.model_dump_json(), status, headers, media_type="application/json")
