"""How a route gets its engine, and calls it without making other routes wait."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from anyio import to_thread
from fastapi import Request

from comln_serve.api.authentication import tenant_of
from comln_serve.api.context import current_record
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.engine import Engine, Predicted

_Result = TypeVar("_Result")


def engine_of(request: Request) -> Engine:
    """The engine that the application serves."""
    engine: Engine = request.app.state.engine
    return engine


async def work(request: Request, call: Callable[[Cancellation], _Result]) -> _Result:
    """Run an engine call on a thread of its own pool, so that light routes never wait for it.

    What is left of its work is dropped when the client leaves, and when the server gives the
    request up.
    """
    cancellation = Cancellation()
    watching = asyncio.create_task(_cancel_when_gone(request, cancellation))
    try:
        return await to_thread.run_sync(call, cancellation, limiter=request.app.state.work_threads)
    finally:
        watching.cancel()
        cancellation.cancel()


async def _cancel_when_gone(request: Request, cancellation: Cancellation) -> None:
    """The body has been read: what may still be received is that the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    cancellation.cancel()


async def classify(
    request: Request,
    images: Sequence[bytes],
    classifier: str,
    write: Callable[[Predicted], _Result],
    *,
    unknown: bool = False,
) -> _Result:
    """Classify images and write the answer, both on a thread; noted in the request's record.

    It takes its place among the requests under way here: it has been received.

    Raises:
        ServiceError: as `Engine.predict`; OVERLOADED.
    """
    engine, tenant, record = engine_of(request), tenant_of(request), current_record()
    record.images = len(images)

    def predict(cancellation: Cancellation) -> _Result:
        predicted = engine.predict(
            images, classifier, unknown=unknown, tenant=tenant, cancellation=cancellation
        )
        record.model, record.stages_ms = predicted.classifier.model, predicted.timings_ms
        return write(predicted)

    with request.app.state.requests.admit():
        return await work(request, predict)


async def probe(request: Request, call: Callable[[], _Result]) -> _Result:
    """Run what operators poll on threads of its own, so that it never waits for requests."""
    return await to_thread.run_sync(call, limiter=request.app.state.probe_threads)


async def scrape(request: Request, call: Callable[[], _Result]) -> _Result:
    """The same for metrics, so that a driver or a database that hangs leaves the probes alone."""
    return await to_thread.run_sync(call, limiter=request.app.state.scrape_threads)
