"""Paces the receiving of bodies while clients connect, so that connections are accepted and keys checked meanwhile."""

import asyncio

from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.turns import Turns

# Requests of one tenant, unless more may be pending. Each holds a connection and what has arrived of its body, up to
# 320 KiB.
MOST_WAITING = 256
# After a connection, more are expected to come for so long.
_CONNECTING_S = 0.05


class Pace:
    """Lets one request at each pass of the event loop receive a piece of its body, while clients connect. Tenants take
    turns.

    At a pass the loop also accepts a limited number of connections. If every body were received at once, clients that
    connect faster than their bodies are read and parsed would fill the system's queue of connections, where all others
    wait, too. With this pace their requests wait in the server, which knows their tenant by then.
    """

    def __init__(self, most_waiting: int = MOST_WAITING) -> None:
        """Nobody waits. Of each tenant at most `most_waiting` requests can."""
        self._most_waiting = most_waiting
        self._waiting = Turns[asyncio.Future[None]]()
        self._is_used = False  # this pass of the loop
        self._connected_at = 0.0

    def connected(self) -> None:
        """Note that a client has connected."""
        self._connected_at = asyncio.get_running_loop().time()

    async def turn(self, tenant: str, *, begun: bool = False) -> None:
        """Wait until the request may receive a piece.

        Args:
            begun: it has received one before, and is not refused any more.

        Raises:
            ServiceError: OVERLOADED, too many of the tenant's requests wait.
        """
        loop = asyncio.get_running_loop()
        if not self._is_used:
            if loop.time() - self._connected_at < _CONNECTING_S:
                self._use(loop)
            return
        waiting = len(self._waiting.members(tenant))
        if waiting >= self._most_waiting and not begun:
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"The server is busy: the bodies of {waiting} requests wait to be received; at most "
                f"{self._most_waiting} can wait. Try again in a moment.",
                pending=waiting,
                received=1,
                limit=self._most_waiting,
            )
        ticket = loop.create_future()
        self._waiting.add(tenant, ticket)
        try:
            await ticket
        finally:
            self._waiting.remove(tenant, ticket)  # if it was given up

    def _use(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_used = True
        loop.call_soon(self._begin_pass, loop)

    def _begin_pass(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_used = False
        while self._waiting and not self._is_used:
            ticket = self._waiting.take()
            if not ticket.done():
                ticket.set_result(None)
                self._use(loop)
