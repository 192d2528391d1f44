"""HEAD requests, which load balancers and uptime checks send."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadAsGet:
    """ASGI middleware that answers HEAD as GET would be answered, without the body.

    FastAPI's routes answer GET alone.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        inner = {**scope, "method": "GET"}
        try:
            await self._app(inner, receive, send_without_body)
        finally:
            scope.update({**inner, "method": "HEAD"})  # the route, for metrics and the log
