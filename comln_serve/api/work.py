"""Runs engine calls of routes: predictions on the event loop, what blocks on thread pools."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal, TypeVar

from anyio import to_thread
from fastapi import Request

from comln_serve.api.authentication import tenant_of
from comln_serve.api.context import current_record
from comln_serve.engine.cancellation import Caller, Cancellation
from comln_serve.engine.embedding.decoders import File
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
    """Run an engine call that blocks on the worker threads, so that light routes never wait for it."""
    return await to_thread.run_sync(call, limiter=request.app.state.work_threads)


async def classify(
    request: Request,
    images: Sequence[File],
    classifier: str,
    write: Callable[[Predicted], _Result],
    *,
    unknown: bool = False,
    examples: bool = False,
    all_views: bool = False,
    partial: bool = False,
) -> _Result:
    """Classify images and write the answer, a long one on a worker thread. Notes both in the request's record.

    The request takes a place among the pending ones here, once its body has arrived.

    Raises:
        ServiceError: as `Engine.predict`; OVERLOADED.
    """
    engine, tenant, record = engine_of(request), tenant_of(request), current_record()
    record.images = len(images)
    with request.app.state.requests.admit(tenant=tenant):
        async with cancelled_with(request) as cancellation:
            caller = Caller(tenant, cancellation=cancellation)
            predicted = await engine.predict(
                images, classifier, caller, unknown=unknown, examples=examples, all_views=all_views, partial=partial
            )
            record.model, record.classifier = predicted.classifier.model, predicted.classifier.id
            record.rejected, record.stages_ms = [one.code for one in predicted.rejected], predicted.timings_ms
            if predicted.probabilities.size + len(predicted.rejected) <= _SHORT_ANSWER:
                return write(predicted)
            return await work(request, lambda: write(predicted))


@asynccontextmanager
async def cancelled_with(request: Request) -> AsyncGenerator[Cancellation]:
    """A cancellation for the work in the block, raised when the client disconnects or the server gives the request up.

    The request's body must have been read.
    """
    cancellation = Cancellation()
    watching = asyncio.create_task(_cancel_when_gone(request, cancellation))
    try:
        yield cancellation
    finally:
        watching.cancel()
        cancellation.cancel()


async def _cancel_when_gone(request: Request, cancellation: Cancellation) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    cancellation.cancel()


async def read(request: Request, call: Callable[[], _Result]) -> _Result:
    """Run a call that reads what may become an answer of megabytes, few of them at a time; tenants take turns.

    Raises:
        ServiceError: OVERLOADED, answers that wait for their clients fill the memory allowed; QUEUE_TIMEOUT.
    """
    state, tenant = request.app.state, tenant_of(request)
    async with state.reading.turn(tenant, engine_of(request).settings.max_queue_seconds):
        state.held.check(tenant)  # only now, as others may have waited with this request
        return await to_thread.run_sync(call, limiter=state.reading_threads)


async def probe(request: Request, call: Callable[[], _Result]) -> _Result:
    """Run a health check on the probe threads, so that it never waits for requests."""
    return await to_thread.run_sync(call, limiter=request.app.state.probe_threads)
