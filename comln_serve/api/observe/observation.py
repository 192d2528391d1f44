"""The outermost layer: gives every request its id, log line, metrics and trace, however it ends; answers HEAD."""

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from comln_serve.api import context
from comln_serve.api.context import OPEN_INFERENCE, POLLED, REQUEST_ID_HEADER, UNMATCHED, RequestRecord, current_record
from comln_serve.api.errors import internal_error, out_of_time, to_response
from comln_serve.api.observe.metrics import Metrics
from comln_serve.engine.clock import on_stage
from comln_serve.errors import ServiceError
from comln_serve.logs import request_id

if TYPE_CHECKING:
    from comln_serve.api.observe.traces import Traces

logger = logging.getLogger("comln_serve.requests")

_SAFE_HEADERS = {
    # Answers hold users' data: proxies and browsers must not store them.
    "Cache-Control": "no-store",
    # Default for answers that are not pages; /docs and the page set their own policies.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

# Unless one fails, these are logged at level debug and not traced.
_QUIET = POLLED | {f"{OPEN_INFERENCE}/models/{{model}}/ready"}


class Observation:
    """ASGI middleware that keeps the `RequestRecord`. Must be outermost."""

    def __init__(self, app: ASGIApp, metrics: Metrics, traces: "Traces | None") -> None:
        self._app, self._metrics, self._traces = app, metrics, traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = context.new_record(scope)
        # FastAPI's routes answer GET alone: HEAD is answered as GET would be, without the body.
        is_head = scope["method"] == "HEAD"
        scope = {**scope, "method": "GET"} if is_head else scope

        async def counted_receive() -> Message:
            message = await receive()
            record.bytes_in += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                _add_headers(headers, record)
                if not scope["app"].state.sends_request_id:
                    del headers[REQUEST_ID_HEADER]
                if scope["app"].state.draining:  # so that the client sends its next request elsewhere
                    headers["Connection"] = "close"
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            record.bytes_out += len(message.get("body", b""))
            await send(message)

        # Nothing resets these: a request runs in a task of its own, and they end with it.
        context.current.set(record)
        request_id.set(record.id)
        on_stage.set(lambda *stage: record.stages.append(stage))
        span = None if self._traces is None else self._traces.begin(record, Headers(scope=scope))
        began = time.perf_counter()
        with self._metrics.in_flight.track_inprogress():
            try:
                await self._app(scope, counted_receive, counted_send)
            finally:
                record.seconds, record.route = time.perf_counter() - began, _route_of(scope)
                self._metrics.count(record)
                # A span that is not ended is not sent.
                if self._traces is not None and span is not None and not _is_routine(record):
                    self._traces.end(span, record)
                _log(record)


class Rescue:
    """ASGI middleware that answers requests that met a bug or were cut off by the server's stop."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = current_record()
        try:
            await self._app(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - any bug is logged and answered
            record.bug = error
            if not record.status:
                await internal_error()(scope, receive, send)
        except asyncio.CancelledError:
            if record.status or not scope["app"].state.draining:
                raise
            await out_of_time()(scope, receive, send)


def answer_early(metrics: Metrics, error: ServiceError) -> Response:
    """Answer input that could not be parsed as an HTTP request. Also counts and logs it."""
    record = RequestRecord()
    token = context.current.set(record)
    try:
        response = to_response(error)
        del response.headers["Connection"]  # the HTTP server sets it
        record.status = response.status_code
        _add_headers(response.headers, record)
        record.bytes_out = len(response.body)
        metrics.count(record)
        _log(record)
    finally:
        context.current.reset(token)
    return response


def _add_headers(headers: MutableHeaders, record: RequestRecord) -> None:
    """Add the request's id, and those of the safe headers that the route has not set itself."""
    for name, value in _SAFE_HEADERS.items():
        headers.setdefault(name, value)
    headers[REQUEST_ID_HEADER] = record.id


def _route_of(scope: Scope) -> str:
    """See `RequestRecord.route`."""
    path = getattr(scope.get("route"), "path", None)
    if path is None and (endpoint := scope.get("endpoint")) is not None:
        # Starlette's own routes, of the page and the documentation, name their endpoint only.
        routes = (route for route in scope["app"].routes if isinstance(route, Route))
        path = next((route.path for route in routes if route.endpoint is endpoint), None)
    return path if isinstance(path, str) else UNMATCHED


def _is_routine(record: RequestRecord) -> bool:
    return record.route in _QUIET and 0 < record.status < 400


def _log(record: RequestRecord) -> None:
    """Log one line for the request, with the traceback if it met a bug."""
    fields: dict[str, Any] = {
        "request_id": record.id,
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "ms": round(1e3 * record.seconds, 3),
        "bytes_in": record.bytes_in,
        "bytes_out": record.bytes_out,
        "trace_id": record.trace_id,
        "key": record.key,
        "images": None if record.operation is None else record.images,
        "rejected": len(record.rejected) or None,
        "model": record.model,
        "classifier": record.classifier,
        "stages_ms": dict(record.stages_ms) or None,
        "error": record.error,
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    if record.bug is not None:
        level = logging.ERROR
    elif record.status == 0 or record.status >= 500:
        level = logging.WARNING
    elif _is_routine(record):
        level = logging.DEBUG
    else:
        level = logging.INFO
    said = (record.method, record.route, record.status)
    logger.log(level, "%s %s %d", *said, extra={"fields": fields}, exc_info=record.bug)
