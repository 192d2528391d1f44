"""Runs engine calls of routes: predictions on the event loop, what blocks on threads."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Literal, TypeVar

from anyio import to_thread
from fastapi import Request, Response
from pydantic import BaseModel

from comln_serve.api import schemas
from comln_serve.api.authentication import tenant_of
from comln_serve.api.context import current_record
from comln_serve.api.sent import Sent
from comln_serve.engine.adapting.adaptation import Adapted
from comln_serve.engine.cancellation import Caller, Cancellation
from comln_serve.engine.engine import Engine, Predicted

_Result = TypeVar("_Result")

# Probabilities and rejected images in an answer that is written in less than a millisecond.
_SHORT_ANSWER = 100


def engine_of(request: Request) -> Engine:
    """The engine that the application serves."""
    engine: Engine = request.app.state.engine
    return engine


def begin(request: Request, operation: Literal["adapt", "predict"]) -> Engine:
    """Note what the request is for; refuse it, before its body is read, if too many others are in work.

    Takes no place yet: a request does once its body has arrived, so that slow senders keep nobody out.

    Raises:
        ServiceError: OVERLOADED.
    """
    current_record().operation = operation
    request.app.state.requests.check(tenant_of(request))
    return engine_of(request)


async def work(request: Request, call: Callable[[], _Result]) -> _Result:
    """Run a call that blocks on a thread. The caller sees to it that there are not too many at once."""
    return await to_thread.run_sync(call, limiter=request.app.state.threads)


async def classify(
    request: Request,
    images: int,
    predict: Callable[[Caller], Awaitable[Predicted]],
    write: Callable[[Predicted], _Result],
) -> _Result:
    """Predict, and write the answer, a long one on a thread. Notes both in the request's record.

    The request takes a place among the pending ones here, once its body has arrived.

    Raises:
        ServiceError: as `predict`; OVERLOADED.
    """
    tenant, record = tenant_of(request), current_record()
    record.images = images
    async with _pending(request) as cancellation:
        predicted = await predict(Caller(tenant, cancellation=cancellation))
        record.model, record.classifier = predicted.classifier.model, predicted.classifier.id
        record.rejected, record.stages_ms = [one.code for one in predicted.rejected], predicted.timings_ms
        if predicted.probabilities.size + len(predicted.rejected) <= _SHORT_ANSWER:
            return write(predicted)
        return await work(request, lambda: write(predicted))


async def make(
    request: Request, call: Callable[[Caller], Adapted], *, sent: Sent | None = None, key: str | None = None
) -> Response:
    """Run an engine call that makes or changes a classifier. Answer with the classifier.

    Args:
        sent: the request's images, if it has any.
    """
    record, tenant, sent = current_record(), tenant_of(request), sent or Sent()
    record.images = len(sent.images)

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

    async with _pending(request) as cancellation:
        return await work(request, lambda: written(cancellation))


@asynccontextmanager
async def _pending(request: Request) -> AsyncGenerator[Cancellation]:
    """Hold a place among the pending requests. The work in the block is to be cancelled when the client disconnects or
    the server gives the request up.

    The request's body must have been read.
    """
    cancellation = Cancellation()

    async def cancel_when_gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        cancellation.cancel()

    with request.app.state.requests.admit(tenant=tenant_of(request)):
        watching = asyncio.create_task(cancel_when_gone())
        try:
            yield cancellation
        finally:
            watching.cancel()
            cancellation.cancel()


async def read(request: Request, call: Callable[[], _Result]) -> _Result:
    """Run a call that reads what may become an answer of megabytes, few of them at a time; tenants take turns.

    Raises:
        ServiceError: OVERLOADED, answers that wait for their clients fill the memory allowed; QUEUE_TIMEOUT.
    """
    state, tenant = request.app.state, tenant_of(request)
    async with state.reading.turn(tenant, engine_of(request).settings.max_queue_seconds):
        state.held.check(tenant)  # only now, as others may have waited with this request
        return await work(request, call)


async def change(request: Request, call: Callable[[], _Result]) -> _Result:
    """Run a call that writes to the store, few of them at a time; tenants take turns.

    Writers wait for each other, and must not keep routes that only read waiting.

    Raises:
        ServiceError: as `read`; OVERLOADED, too many requests are in work.
    """
    state, tenant = request.app.state, tenant_of(request)
    with state.requests.admit(tenant=tenant):
        async with state.changing.turn(tenant, engine_of(request).settings.max_queue_seconds):
            state.held.check(tenant)
            return await work(request, call)


def as_json(
    body: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None, *, exclude_unset: bool = False
) -> Response:
    """Serialise an answer where this is called; the framework would validate it once more, and always serialise it on
    the event loop.
    """
    content = body.model_dump_json(exclude_unset=exclude_unset)
    return Response(content, status, headers, media_type="application/json")
