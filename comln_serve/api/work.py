"""How a route gets its engine, and calls it without making other routes wait."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from anyio import to_thread
from fastapi import Request

from comln_serve.api.authentication import tenant_of
from comln_serve.api.context import current_record
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.engine import Engine, Predicted
from comln_serve.engine.pending import Pending

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
    async with _while_wanted(request) as cancellation:
        return await to_thread.run_sync(call, cancellation, limiter=request.app.state.work_threads)


@asynccontextmanager
async def _while_wanted(request: Request) -> AsyncGenerator[Cancellation, None]:
    """What is raised when the client leaves during the block, and at its end in any case."""
    cancellation = Cancellation()
    watching = asyncio.create_task(_cancel_when_gone(request, cancellation))
    try:
        yield cancellation
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
    """Classify images and write the answer, both on a thread; noted in the request's record. It
    takes its place among the requests under way here: it has been received.

    Raises:
        ServiceError: as `Engine.predict`.
    """
    record = current_record()
    record.images = len(images)

    def answer(predicted: Predicted) -> _Result:
        record.model, record.stages_ms = predicted.classifier.model, predicted.timings_ms
        return write(predicted)

    engine, tenant = engine_of(request), tenant_of(request)

    def start(cancellation: Cancellation, when_over: Callable[[], None]) -> Pending[_Result] | None:
        return engine.predict_soon(
            images, classifier, answer, when_over,
            unknown=unknown, tenant=tenant, cancellation=cancellation,
        )  # fmt: skip

    def predict(cancellation: Cancellation) -> _Result:
        return answer(
            engine.predict(
                images, classifier, unknown=unknown, tenant=tenant, cancellation=cancellation
            )
        )

    with request.app.state.requests.admit():
        async with _while_wanted(request) as cancellation:
            pending = await _over(lambda when_over: start(cancellation, when_over))
            if pending is not None:
                return pending.result()
        return await work(request, predict)


async def _over(
    start: Callable[[Callable[[], None]], Pending[_Result] | None],
) -> Pending[_Result] | None:
    """What has been started, once it is over."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    timer: asyncio.TimerHandle | None = None

    def resolve() -> None:
        if not over.done():  # nobody waits any more
            over.set_result(None)

    def when_over() -> None:
        with suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(resolve)

    def look(pending: Pending[_Result]) -> None:
        nonlocal timer
        patience = pending.look()
        timer = None if patience is None else loop.call_later(patience, look, pending)

    pending = start(when_over)
    if pending is None:
        return None
    look(pending)
    try:
        await over
    finally:
        if timer is not None:
            timer.cancel()
    return pending


async def probe(request: Request, call: Callable[[], _Result]) -> _Result:
    """Run what operators poll on threads of its own, so that it never waits for requests."""
    return await to_thread.run_sync(call, limiter=request.app.state.probe_threads)


async def scrape(request: Request, call: Callable[[], _Result]) -> _Result:
    """The same for metrics, so that a driver or a database that hangs leaves the probes alone."""
    return await to_thread.run_sync(call, limiter=request.app.state.scrape_threads)
