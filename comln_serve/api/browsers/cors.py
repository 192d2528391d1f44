"""Allows pages of configured origins to call the server from a browser (CORS)."""

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from comln_serve.api.context import REQUEST_ID_HEADER
from comln_serve.api.errors import to_response
from comln_serve.errors import ErrorCode, ServiceError


class Cors(CORSMiddleware):
    """Starlette's middleware, but a refused preflight gets the project's error shape."""

    def __init__(self, app: ASGIApp, origins: list[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=["DELETE", "GET", "PATCH", "POST"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", REQUEST_ID_HEADER],
            expose_headers=["Idempotency-Replayed", "Retry-After", REQUEST_ID_HEADER],
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        problem = bytes(response.body).decode()
        refusal = to_response(
            ServiceError(
                ErrorCode.INVALID_REQUEST,
                f"{problem}. Pages of other origins may call this server from a browser only as "
                "its setting --cors-origins allows.",
            )
        )
        for name, value in response.headers.items():
            if name == "vary" or name.startswith("access-control-"):
                refusal.headers[name] = value
        return refusal
