"""Error lists, parameters and helpers that several routes share."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar

from fastapi import Header, Path, Request, Response
from pydantic import AfterValidator, BaseModel, Field

from comln_serve.api import schemas
from comln_serve.api.authentication import tenant_of
from comln_serve.api.context import current_record
from comln_serve.api.rejected import Sent
from comln_serve.api.work import cancelled_with, engine_of, work
from comln_serve.engine.adapting.adaptation import Adapted
from comln_serve.engine.adapting.changes import Change
from comln_serve.engine.cancellation import Caller, Cancellation
from comln_serve.errors import ErrorCode

_Result = TypeVar("_Result")

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
    ErrorCode.QUEUE_TIMEOUT,
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

_UNNAMED = Sent()


async def change(request: Request, call: Callable[[], _Result]) -> _Result:
    """Run an engine call that writes to the store on the worker threads, few of them at a time; tenants take turns.

    Writers wait for each other, and must not keep routes that only read waiting.

    Raises:
        ServiceError: OVERLOADED, also if answers that wait for their clients fill the memory allowed; QUEUE_TIMEOUT.
    """
    state, tenant = request.app.state, tenant_of(request)
    with state.requests.admit(tenant=tenant):
        async with state.changing.turn(tenant, engine_of(request).settings.max_queue_seconds):
            state.held.check(tenant)
            return await work(request, call)


async def make(
    request: Request, call: Callable[[Caller], Adapted], *, sent: Sent = _UNNAMED, key: str | None = None
) -> Response:
    """Run an engine call that makes or changes a classifier. Answer with the classifier.

    Args:
        sent: what the request calls its images.
    """
    record, tenant = current_record(), tenant_of(request)

    def written(cancellation: Cancellation) -> Response:
        with sent.naming_errors():
            adapted = call(Caller(tenant, key, cancellation))
        record.stages_ms, record.classifier = adapted.timings_ms, adapted.classifier.id
        headers = {"Idempotency-Replayed": "true"} if adapted.replayed else None
        if not adapted.replayed:
            record.model = adapted.classifier.model
            record.rejected = [one.code for one in adapted.rejected]
        body = schemas.AdaptResponse(
            **dict(schemas.ClassifierDetail.model_validate(adapted.classifier)),
            timings_ms=adapted.timings_ms,
            rejected=sent.described(adapted.rejected),
        )
        return as_json(body, request.scope["route"].status_code or 200, headers)

    with request.app.state.requests.admit(tenant=tenant):
        async with cancelled_with(request) as cancellation:
            return await work(request, lambda: written(cancellation))


async def make_change(request: Request, ref: str, change: Change, *, promote: bool, key: str | None = None) -> Response:
    """Change a classifier without images. Answer with the classifier."""
    engine = engine_of(request)
    return await make(request, lambda caller: engine.change(ref, change, caller, promote=promote), key=key)


def as_json(
    body: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None, *, exclude_unset: bool = False
) -> Response:
    """Serialise an answer where this is called; the framework would validate it once more, and always serialise it on
    the event loop.
    """
    content = body.model_dump_json(exclude_unset=exclude_unset)
    return Response(content, status, headers, media_type="application/json")
