"""A lock for coroutines, for which tenants take turns."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from comln_serve.engine.turns import Turns


class Line:
    """A lock for coroutines. Tenants take turns, however many of their requests wait."""

    def __init__(self) -> None:
        """The lock is free."""
        self._taken = False
        self._waiting = Turns[asyncio.Future[None]]()

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncGenerator[None, None]:
        """Wait for the lock, and hold it during the block."""
        if self._taken:
            ticket = asyncio.get_running_loop().create_future()
            self._waiting.add(tenant, ticket)
            try:
                await ticket  # done once the lock, still taken, is handed on to this request
            except asyncio.CancelledError:
                self._waiting.remove(tenant, ticket)
                if not ticket.cancelled():  # the lock was handed on to this request, which does not use it
                    self._hand_on()
                raise
        self._taken = True
        try:
            yield
        finally:
            self._hand_on()

    def _hand_on(self) -> None:
        while self._waiting:
            ticket = self._waiting.take()
            if not ticket.done():
                ticket.set_result(None)
                return
        self._taken = False
