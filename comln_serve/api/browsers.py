"""What protects a browser's user. Refuses requests that pages of other sites make a browser send (cross-site request
forgery), and lets pages of configured origins call the server (CORS).

A page of any site can make the browser send requests to any address it can reach, this machine's
included. The page cannot read the answer, but the request has taken effect: so requests of other
origins may not change anything. A page can read answers if its own host name has been made to
resolve to the server's address (DNS rebinding); its requests then have that name as `Host`: so
requests under unknown names are refused. Programs send neither `Sec-Fetch-Site` nor `Origin`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from comln_serve.api.context import REQUEST_ID_HEADER
from comln_serve.api.errors import to_response
from comln_serve.errors import ErrorCode, ServiceError, invalid

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST = re.compile(r"(?:\[([0-9a-f:.]*)\]|([a-z0-9._-]*))(?::[0-9]*)?")
_MAX_SHOWN = 100
_ALLOWED_METHODS = ("DELETE", "GET", "PATCH", "POST")
_ALLOWED_HEADERS = ("Authorization", "Content-Type", "Idempotency-Key", REQUEST_ID_HEADER)
_ASKED = {"origin": "origin", "method": "access-control-request-method", "headers": "access-control-request-headers"}
_MAX_ASKED = 200


@dataclass(frozen=True)
class AllowedHosts:
    """The values of `Host` that the server answers. IP addresses and localhost are always allowed:
    nobody can make them resolve to another address.

    Attributes:
        names: in lower case; *.example.org allows all names below it, * any name.
        without_dot: also allow any name without a dot, such as those of services and containers.
    """

    names: tuple[str, ...] = ("*",)
    without_dot: bool = False

    def allow(self, header: str) -> bool:
        """Whether the server answers a request with this `Host` header."""
        if "*" in self.names:
            return True
        found = _HOST.fullmatch(header.lower())
        if found is None:
            return False
        name = (found[1] or found[2]).removesuffix(".")
        return (
            name == "localhost"
            or _is_address(name)
            or name in self.names
            or any(name.endswith(item[1:]) for item in self.names if item.startswith("*."))
            or (self.without_dot and name != "" and "." not in name)
        )


class BrowserGuard:
    """ASGI middleware that refuses requests from pages of other sites."""

    def __init__(self, app: ASGIApp, hosts: AllowedHosts, origins: list[str]) -> None:
        """Pages of `origins` may send any request; * stands for all origins."""
        self._app, self._hosts, self._origins = app, hosts, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            problem = self._foreign_host(headers) or self._foreign_page(scope["method"], headers)
            if problem is not None:
                await to_response(problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _foreign_host(self, headers: Mapping[bytes, str]) -> ServiceError | None:
        host = headers.get(b"host")
        if host is None or self._hosts.allow(host):
            return None
        return ServiceError(
            ErrorCode.FOREIGN_HOST,
            f"This server does not answer under the name in Host, {host[:_MAX_SHOWN]!r}. If it is "
            "reached by that name, list it in the server's setting --allowed-hosts.",
            received=host[:_MAX_SHOWN],
        )

    def _foreign_page(self, method: str, headers: Mapping[bytes, str]) -> ServiceError | None:
        if method in SAFE_METHODS or "*" in self._origins:
            return None
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if origin is not None and origin in self._origins:
            return None
        if site is not None:
            own = site in ("same-origin", "none")  # none: sent by the user, not by a page
        else:
            own = origin is None or origin.partition("://")[2] == headers.get(b"host", "").lower()
        if own:
            return None
        shown = "another site" if origin is None else repr(origin[:_MAX_SHOWN])
        return ServiceError(
            ErrorCode.FOREIGN_ORIGIN,
            f"{method} is not allowed from a page of {shown}. If that page is to use this server, "
            "list its origin in the server's setting --cors-origins.",
            received=None if origin is None else origin[:_MAX_SHOWN],
        )


@lru_cache(maxsize=16)  # few, as clients choose the names
def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class Cors(CORSMiddleware):
    """Starlette's middleware, but a refused preflight gets the project's error shape."""

    def __init__(self, app: ASGIApp, origins: list[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=_ALLOWED_METHODS,
            allow_headers=_ALLOWED_HEADERS,
            expose_headers=["Idempotency-Replayed", "Retry-After", REQUEST_ID_HEADER],
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        received = {name: request_headers.get(header, "")[:_MAX_ASKED] for name, header in _ASKED.items()}
        refusal = to_response(
            invalid(
                f"{bytes(response.body).decode()}: a page of {received['origin']!r} asks for {received['method']!r} "
                f"with the headers {received['headers']!r}. Allowed are the origins in the server's setting "
                f"--cors-origins, the methods {', '.join(_ALLOWED_METHODS)} and, beside those that need no "
                f"permission, the headers {', '.join(_ALLOWED_HEADERS)}.",
                received=received,
                allowed={"methods": list(_ALLOWED_METHODS), "headers": list(_ALLOWED_HEADERS)},
            )
        )
        for name, value in response.headers.items():
            if name == "vary" or name.startswith("access-control-"):
                refusal.headers[name] = value
        return refusal
