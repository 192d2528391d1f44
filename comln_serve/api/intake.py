"""What bodies may take while they are received, worked on and sent: memory and time, over all
requests.

How large one body may be is the business of `comln_serve.api.limits`.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from comln_serve.engine.admission import Admission
from comln_serve.errors import ErrorCode, ServiceError

# The part of an answer that is handed to the connection at once; the next one waits until that has
# been sent.
_PIECE = 2**18


class Intake:
    """ASGI middleware around everything that reads bodies.

    Bytes are counted as they arrive, whatever Content-Length says: a client that announces much
    and sends little takes nothing from the others. They are held until the request is answered.

    A large answer that its client does not read counts with them: while such answers fill the
    memory allowed, no more bodies are received.
    """

    def __init__(self, app: ASGIApp, held: Admission, max_seconds: float) -> None:
        """Wrap an application.

        Args:
            held: bytes of bodies and unsent answers in memory, over all requests.
            max_seconds: from the head of a request to the end of its body.
        """
        self._app, self._held, self._max_seconds = app, held, max_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        deadline = asyncio.get_running_loop().time() + self._max_seconds
        taken, complete = 0, False

        async def bounded_receive() -> Message:
            nonlocal taken, complete
            if complete:  # all that can still come is that the client leaves
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError as error:
                raise receive_timeout(self._max_seconds) from error
            size = len(message.get("body", b""))
            self._held.take(size)
            taken += size
            complete = not message.get("more_body", False)
            return message

        async def counted_send(message: Message) -> None:
            body = message.get("body", b"")
            if len(body) <= _PIECE:
                await send(message)
                return
            self._held.hold(len(body))
            try:
                for start in range(0, len(body), _PIECE):
                    end = start + _PIECE
                    more = end < len(body) or message.get("more_body", False)
                    await send({**message, "body": body[start:end], "more_body": more})
            finally:
                self._held.give_back(len(body))

        try:
            await self._app(scope, bounded_receive, counted_send)
        finally:
            self._held.give_back(taken)


def receive_timeout(allowed: float) -> ServiceError:
    """The error for a request that does not arrive."""
    return ServiceError(
        ErrorCode.RECEIVE_TIMEOUT,
        f"The request was not received within the {allowed:g} s allowed. Send less at a time, or "
        "over a faster connection.",
        allowed_seconds=allowed,
    )
