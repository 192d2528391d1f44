"""The outermost layer: every request is measured here, however it ends."""

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from comln_serve.api import context
from comln_serve.api.errors import internal_error
from comln_serve.api.metrics import UNMATCHED, Metrics

logger = logging.getLogger(__name__)


class Observation:
    """ASGI middleware that keeps a `RequestRecord` and counts it; the last resort for bugs, too."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = context.RequestRecord()

        async def counted_receive() -> Message:
            message = await receive()
            record.bytes_in += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            record.bytes_out += len(message.get("body", b""))
            await send(message)

        token = context.current.set(record)
        began = time.perf_counter()
        with self._metrics.in_flight.track_inprogress():
            try:
                await self._app(scope, counted_receive, counted_send)
            except Exception as error:
                if record.status is not None:  # too late for an answer; let the server hang up
                    raise
                logger.error(  # noqa: TRY400 - the trace is given
                    "unexpected error in %s %s", scope["method"], route_of(scope), exc_info=error
                )
                await internal_error()(scope, receive, counted_send)
            finally:
                seconds = time.perf_counter() - began
                self._metrics.count(record, route_of(scope), scope["method"], seconds)
                context.current.reset(token)


def route_of(scope: Scope) -> str:
    """The template of the route that a request was led to, such as `/classifiers/{id}`."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else UNMATCHED
