"""A lock for coroutines, or a few places, which tenants get in turns."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from comln_serve.engine.admission import waited_too_long
from comln_serve.turns import Turns


class Line:
    """A lock for coroutines, or a few places. Tenants take turns, however many of their requests wait."""

    def __init__(self, places: int = 1) -> None:
        """All are free."""
        self._free = places
        self._waiting = Turns[asyncio.Future[None]]()

    @asynccontextmanager
    async def turn(self, tenant: str, seconds: float | None = None) -> AsyncGenerator[None, None]:
        """Wait for a place, for at most `seconds`, and hold it during the block.

        Raises:
            ServiceError: QUEUE_TIMEOUT.
        """
        if not self._free:
            ticket = asyncio.get_running_loop().create_future()
            self._waiting.add(tenant, ticket)
            try:
                async with asyncio.timeout(seconds):
                    await ticket  # done once a place is handed on to this request; it is not free meanwhile
            except (asyncio.CancelledError, TimeoutError) as error:
                self._waiting.remove(tenant, ticket)
                if not ticket.cancelled():  # it was handed on to this request, which does not use it
                    self._hand_on()
                if seconds is not None and isinstance(error, TimeoutError):
                    raise waited_too_long(seconds, "The request") from error
                raise
        else:
            self._free -= 1
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
        self._free += 1
