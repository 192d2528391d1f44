"""Limits the memory of all request bodies and unsent answers, and the time to receive a body; has tenants take turns.

`comln_serve.api.receive.limits` limits the size of one body.
"""

import asyncio
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from comln_serve.api.authentication import held_by
from comln_serve.api.receive.pace import Pace
from comln_serve.engine.admission import Admission
from comln_serve.errors import ErrorCode, ServiceError

# Bytes of an answer handed to the connection at once; the next piece waits until they are sent.
_PIECE = 2**18


class Intake:
    """ASGI middleware around everything that reads bodies.

    It counts bytes as they arrive and ignores Content-Length: a client that announces much and
    sends little takes no room from others. The bytes count until the request is answered.

    A large answer counts too until its client has read it: while such answers fill the memory
    allowed, the server receives no more bodies.
    """

    def __init__(self, app: ASGIApp, held: Admission, pace: Pace, max_seconds: float) -> None:
        """An intake of which nothing is held.

        Args:
            held: counts bytes of bodies and unsent answers in memory, over all requests.
            pace: lets requests that have bodies receive them.
            max_seconds: from the head of a request to the end of its body.
        """
        self._app, self._held, self._pace, self._max_seconds = app, held, pace, max_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        paced = announces_body(scope["headers"])
        deadline = asyncio.get_running_loop().time() + self._max_seconds
        taken, complete, holder = 0, False, ""

        async def bounded_receive() -> Message:
            nonlocal taken, complete, holder
            if complete:  # only a disconnect can follow
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    if paced:
                        await self._pace.turn(held_by(scope), begun=taken > 0)
                    message = await receive()
            except TimeoutError as error:
                raise receive_timeout(self._max_seconds) from error
            size = len(message.get("body", b""))
            if size:  # that a client has left must not be refused
                holder = held_by(scope)  # known by now: the key is checked before the body is read
                self._held.take(size, before=taken, tenant=holder)
                taken += size
            complete = not message.get("more_body", False)
            return message

        async def counted_send(message: Message) -> None:
            body = message.get("body", b"")
            if len(body) <= _PIECE:
                await send(message)
                return
            tenant = held_by(scope)
            self._held.hold(len(body), tenant=tenant)
            try:
                for start in range(0, len(body), _PIECE):
                    end = start + _PIECE
                    more = end < len(body) or message.get("more_body", False)
                    await send({**message, "body": body[start:end], "more_body": more})
            finally:
                self._held.give_back(len(body), tenant=tenant)

        try:
            await self._app(scope, bounded_receive, counted_send)
        finally:
            self._held.give_back(taken, tenant=holder)


def announces_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request with this head has a body; one in chunks may turn out to be empty."""
    fields = dict(headers)
    return b"transfer-encoding" in fields or fields.get(b"content-length", b"").strip(b"0") != b""


def receive_timeout(allowed: float) -> ServiceError:
    """The error for a request that is not received in time."""
    return ServiceError(
        ErrorCode.RECEIVE_TIMEOUT,
        f"The request was not received within the {allowed:g} s allowed. Send less at a time, or "
        "over a faster connection.",
        allowed_seconds=allowed,
    )
