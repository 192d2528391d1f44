"""The outermost layer: every request gets its id, its log line and its metrics, however it ends."""

import asyncio
import logging
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from comln_serve.api import context
from comln_serve.api.context import REQUEST_ID_HEADER, RequestRecord
from comln_serve.api.errors import internal_error, out_of_time
from comln_serve.api.metrics import UNMATCHED, Metrics
from comln_serve.logs import request_id

logger = logging.getLogger("comln_serve.requests")

# Asked every few seconds by machines; logged at level debug unless something is wrong.
_POLLED = frozenset({"/health/live", "/health/ready", "/metrics"})


class Observation:
    """ASGI middleware that keeps a `RequestRecord`; the last resort for bugs, too."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = context.new_record(scope["headers"])
        identifier = (REQUEST_ID_HEADER.lower().encode(), record.id.encode())

        async def counted_receive() -> Message:
            message = await receive()
            record.bytes_in += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message.get("headers", []), identifier]
                if scope["app"].state.draining:  # the next request had better go elsewhere
                    message["headers"].append((b"connection", b"close"))
            record.bytes_out += len(message.get("body", b""))
            await send(message)

        tokens = context.current.set(record), request_id.set(record.id)
        began = time.perf_counter()
        bug: Exception | None = None
        with self._metrics.in_flight.track_inprogress():
            try:
                await self._app(scope, counted_receive, counted_send)
            except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer
                bug = error
                if record.status is None:
                    await internal_error()(scope, receive, counted_send)
            except asyncio.CancelledError:
                if record.status is not None or not scope["app"].state.draining:
                    raise
                await out_of_time()(scope, receive, counted_send)
            finally:
                seconds = time.perf_counter() - began
                self._metrics.count(record, route_of(scope), scope["method"], seconds)
                _log(record, scope, seconds, bug)
                context.current.reset(tokens[0])
                request_id.reset(tokens[1])


def route_of(scope: Scope) -> str:
    """The template of the route that a request was led to, such as `/classifiers/{id}`."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else UNMATCHED


def _log(record: RequestRecord, scope: Scope, seconds: float, bug: Exception | None) -> None:
    """One line for the request, with the trace of what was not expected."""
    method, route, status = scope["method"], route_of(scope), record.status or 0
    milliseconds = round(1e3 * seconds, 3)
    fields: dict[str, Any] = {
        "method": method,
        "route": route,
        "status": status,
        "ms": milliseconds,
        "bytes_in": record.bytes_in,
        "bytes_out": record.bytes_out,
    }
    if record.operation is not None:
        fields["images"] = record.images
    if record.model is not None:
        fields["model"] = record.model
    if record.stages_ms:
        fields["stages_ms"] = dict(record.stages_ms)
    if record.error is not None:
        fields["error"] = record.error.value
    if bug is not None:
        level = logging.ERROR
    elif status == 0 or status >= 500:
        level = logging.WARNING
    elif status < 400 and route in _POLLED:
        level = logging.DEBUG
    else:
        level = logging.INFO
    logger.log(level, "%s %s %d", method, route, status, extra={"fields": fields}, exc_info=bug)
