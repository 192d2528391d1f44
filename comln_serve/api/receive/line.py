"""The line before what one request does at a time."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from comln_serve.engine.turns import Turns


class Line:
    """A lock of an event loop that tenants get in turns, however many of their requests wait."""

    def __init__(self) -> None:
        """Nobody has it."""
        self._taken = False
        self._waiting = Turns[asyncio.Future[None]]()

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncGenerator[None, None]:
        """Wait for the turn, and keep it for the block."""
        if self._taken:
            ticket = asyncio.get_running_loop().create_future()
            self._waiting.add(tenant, ticket)
            try:
                await ticket  # resolved by who hands the turn on, which stays taken
            except asyncio.CancelledError:
                self._waiting.remove(tenant, ticket)
                if not ticket.cancelled():  # the turn had come, and nobody uses it
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
