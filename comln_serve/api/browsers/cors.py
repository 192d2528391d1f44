"""Allows pages of configured origins to call the server from a browser (CORS)."""

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from comln_serve.api.context import REQUEST_ID_HEADER
from comln_serve.api.errors import to_response
from comln_serve.errors import ErrorCode, ServiceError

_METHODS = ("DELETE", "GET", "PATCH", "POST")
_HEADERS = ("Authorization", "Content-Type", "Idempotency-Key", REQUEST_ID_HEADER)
_ASKED = {"origin": "origin", "method": "access-control-request-method", "headers": "access-control-request-headers"}
_MAX_SHOWN = 200


class Cors(CORSMiddleware):
    """Starlette's middleware, but a refused preflight gets the project's error shape."""

    def __init__(self, app: ASGIApp, origins: list[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=_METHODS,
            allow_headers=_HEADERS,
            expose_headers=["Idempotency-Replayed", "Retry-After", REQUEST_ID_HEADER],
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        received = {name: request_headers.get(header, "")[:_MAX_SHOWN] for name, header in _ASKED.items()}
        refusal = to_response(
            ServiceError(
                ErrorCode.INVALID_REQUEST,
                f"{bytes(response.body).decode()}: a page of {received['origin']!r} asks for {received['method']!r} "
                f"with the headers {received['headers']!r}. Allowed are the origins in the server's setting "
                f"--cors-origins, the methods {', '.join(_METHODS)} and, beside those that need no "
                f"permission, the headers {', '.join(_HEADERS)}.",
                received=received,
                allowed={"methods": list(_METHODS), "headers": list(_HEADERS)},
            )
        )
        for name, value in response.headers.items():
            if name == "vary" or name.startswith("access-control-"):
                refusal.headers[name] = value
        return refusal
