"""Turns every error into an HTTP answer: one table of statuses, one body shape.

Only the Open Inference Protocol has its own body shape: `{"error": message}`.
"""

import asyncio
import json
from collections.abc import Mapping
from reprlib import Repr
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from comln_serve.api.context import current_record
from comln_serve.api.receive.requests import UNKNOWN_FIELD
from comln_serve.api.schemas import ErrorResponse
from comln_serve.errors import ErrorCode, ServiceError, invalid

STATUS: Mapping[ErrorCode, int] = {
    ErrorCode.MALFORMED_HTTP: 400,
    ErrorCode.HEAD_TOO_LARGE: 431,
    ErrorCode.FOREIGN_HOST: 421,
    ErrorCode.FOREIGN_ORIGIN: 403,
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.INVALID_REQUEST: 422,
    ErrorCode.INVALID_IMAGE: 422,
    ErrorCode.IMAGE_TOO_LARGE: 413,
    ErrorCode.TOO_MANY_IMAGES: 413,
    ErrorCode.RECEIVE_TIMEOUT: 408,
    ErrorCode.BODY_TOO_LARGE: 413,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: 415,
    ErrorCode.MODEL_NOT_FOUND: 404,
    ErrorCode.CLASSIFIER_NOT_FOUND: 404,
    ErrorCode.EXAMPLE_NOT_FOUND: 404,
    ErrorCode.THUMBNAIL_NOT_FOUND: 404,
    ErrorCode.MODEL_CHANGED: 409,
    ErrorCode.NAME_TAKEN: 409,
    ErrorCode.NAME_MOVED: 409,
    ErrorCode.TOO_MANY_CLASSIFIERS: 409,
    ErrorCode.NOTHING_TO_ROLL_BACK_TO: 409,
    ErrorCode.IDEMPOTENCY_MISMATCH: 422,
    ErrorCode.CANNOT_ADAPT: 422,
    ErrorCode.CANNOT_EXPORT: 422,
    ErrorCode.CANNOT_RELOAD: 409,
    ErrorCode.ROUTE_NOT_FOUND: 404,
    ErrorCode.METHOD_NOT_ALLOWED: 405,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.OVERLOADED: 429,
    ErrorCode.QUEUE_TIMEOUT: 503,
    ErrorCode.INFERENCE_TIMEOUT: 504,
    ErrorCode.CLIENT_GONE: 499,  # nginx's status for this; no client receives it
    ErrorCode.NOT_READY: 503,
    ErrorCode.STORAGE_UNAVAILABLE: 503,
    ErrorCode.INTERNAL: 500,
}
# 408 closes the connection, as the rest of the body is never read.
_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 408: {"Connection": "close"}}
_MAX_SHOWN, _MAX_NAME = 200, 100
# `repr` would copy a string of 16 MB before it is cut to 200 characters.
_SHOWN = Repr()
_SHOWN.maxstring = _SHOWN.maxother = _MAX_SHOWN


# Seconds that a refusal waits, and that it waits at most.
_SHORTEST_S, _LONGEST_S = 0.5, 2.0
# Refusals a second, as long as the longest wait allows.
_RATE = 500


class Refusals:
    """Refusals of one process that wait to be sent, so that clients which ask again at once, whatever Retry-After says,
    take little of the event loop's time from others.
    """

    _waiting = 0

    async def wait(self) -> None:
        """Wait as a refusal: half a second, and longer where more than 250 wait."""
        self._waiting += 1
        try:
            await asyncio.sleep(min(_LONGEST_S, max(_SHORTEST_S, self._waiting / _RATE)))
        finally:
            self._waiting -= 1


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error, the framework's own included, with the body `ErrorResponse`."""
    app.state.refusals = Refusals()
    app.exception_handler(ServiceError)(_on_service_error)
    app.exception_handler(HTTPException)(_on_http_exception)
    app.exception_handler(RequestValidationError)(_on_validation_error)


def error_responses(*codes: ErrorCode, model: type[BaseModel] = ErrorResponse) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses of a route that can fail with these codes, with bodies of `model`."""
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(STATUS[code], []).append(code.value)
    return {status: {"model": model, "description": ", ".join(names)} for status, names in sorted(by_status.items())}


def invalid_request(error: ValidationError | RequestValidationError, within: str | None = None) -> ServiceError:
    """Convert Pydantic's errors into one: the first in the message, the first 20 in the detail.

    Args:
        within: name of the part of the request that was checked; None: all of it.
    """
    problems = [
        {
            "where": ".".join(str(part)[:_MAX_NAME] for part in item["loc"]) or "body",
            "problem": _problem(item),
            "received": _received(item),
        }
        for item in error.errors()
    ]
    first = problems[0]
    return invalid(
        f"{'' if within is None else f'{within}: '}{first['where']}: {first['problem']}; received {first['received']}.",
        problems=problems[:20],
    )


def _problem(item: Mapping[str, Any]) -> str:
    """What is wrong, in words of JSON: Pydantic's would name a class of this program."""
    if item["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "Input should be an object"
    return item["msg"].removeprefix("Value error, ")


def _received(item: Mapping[str, Any]) -> str:
    """What was received, shortened. Of an object with a missing or an unknown field, the names of its fields: values
    may be images.
    """
    value = item.get("input")
    if value is None or isinstance(value, bool):
        return "nothing" if item["type"] == "missing" else json.dumps(value)
    if item["type"] in ("missing", UNKNOWN_FIELD) and isinstance(value, dict):
        value = list(value)
        return f"the fields {_SHOWN.repr(value)[1:-1]}"[:_MAX_SHOWN] if value else "no such field"
    return _SHOWN.repr(value)[:_MAX_SHOWN]


def to_response(error: ServiceError) -> JSONResponse:
    """The HTTP answer for a `ServiceError`. Notes its code in the request's record."""
    record = current_record()
    record.error = error.code
    body = {"code": error.code.value, "message": error.message, "detail": dict(error.detail), "request_id": record.id}
    # Errors echo what a client sent, which may hold lone surrogates: UTF-8 cannot encode them.
    text = {"error": _printable(error.message if record.open_inference else body)}
    return JSONResponse(text, status_code=STATUS[error.code], headers=_headers(error))


def _headers(error: ServiceError) -> dict[str, str]:
    status = STATUS[error.code]
    if status in (429, 503):
        return {"Retry-After": str(error.detail.get("retry_after_seconds", 1))}
    return _HEADERS.get(status, {})


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return value


async def _on_service_error(request: Request, error: ServiceError) -> JSONResponse:
    if STATUS[error.code] == 429:
        await request.app.state.refusals.wait()
    return to_response(error)


async def _on_validation_error(_request: Request, error: RequestValidationError) -> JSONResponse:
    return to_response(invalid_request(error))


async def _on_http_exception(request: Request, error: HTTPException) -> JSONResponse:
    where = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        hint = _without_slash(request) or "GET /docs lists the routes."
        return to_response(ServiceError(ErrorCode.ROUTE_NOT_FOUND, f"There is no {where}. {hint}"))
    if error.status_code == 405:
        allowed = _allowed_methods(request)
        response = to_response(
            ServiceError(ErrorCode.METHOD_NOT_ALLOWED, f"{where} is not allowed; allowed: {allowed}.")
        )
        response.headers["Allow"] = allowed
        return response
    return to_response(invalid(f"{where}: {error.detail}."))


def _without_slash(request: Request) -> str | None:
    """The hint for a path with a trailing slash, if the path without it exists."""
    path = request.url.path.rstrip("/")
    if path in ("", request.url.path):
        return None
    scope = {**request.scope, "path": request.scope["path"].rstrip("/")}
    if all(route.matches(scope)[0] is Match.NONE for route in request.app.routes):
        return None
    return f"There is {path}: leave the slash at the end out."


def _allowed_methods(request: Request) -> str:
    """All methods of a path: Starlette lists only those of the first matching route."""

    def served(method: str) -> bool:
        scope = {**request.scope, "method": "GET" if method == "HEAD" else method}
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)

    return ", ".join(filter(served, ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")))


def out_of_time() -> JSONResponse:
    """The answer to a request that is not finished when the stopping server's time is up."""
    return to_response(
        ServiceError(
            ErrorCode.NOT_READY,
            "The server is stopping and did not finish this request in time; use another. If it "
            "was to make a classifier, GET /classifiers tells whether it did.",
        )
    )


def internal_error() -> JSONResponse:
    """The answer to a request that met a bug. It reveals nothing about the server."""
    return to_response(
        ServiceError(ErrorCode.INTERNAL, "The server failed in a way it did not expect; its log has the details.")
    )
