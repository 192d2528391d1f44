"""The route that is asked most, without what FastAPI does for a route each time it is asked.

It stays a route of FastAPI's as well, which documents it. Reading and writing it does by itself;
what is left, finding it among all routes and solving its dependencies, was a fifth of what a
prediction costs the event loop.
"""

from collections.abc import Awaitable, Callable
from functools import wraps

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

Endpoint = Callable[[Request], Awaitable[Response]]
Check = Callable[[Request], Awaitable[None]]


def answer_directly(app: FastAPI, path: str, endpoint: Endpoint, check: Check) -> None:
    """Let a POST to `path` be answered by an endpoint that needs nothing but its request.

    Args:
        check: what every route depends on; it refuses by an exception.
    """

    @wraps(endpoint)  # with the scopes that it has declared
    async def answer(request: Request) -> Response:
        await check(request)
        return await endpoint(request)

    app.router.routes.insert(0, _Known(path, answer, methods=["POST"], include_in_schema=False))


class _Known(Route):
    """A route that metrics, logs and traces get to know, as they do FastAPI's."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        return match, child if match is Match.NONE else {**child, "route": self}
