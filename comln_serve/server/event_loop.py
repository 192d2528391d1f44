"""The event loop of a server process, whose passes stay short however many connections have something to read."""

import asyncio
import selectors
import sys
from typing import Any

# Sockets served at a pass.
PORTION = 64


class Portions(selectors.DefaultSelector):
    """A selector that deals out what is ready in portions, and asks the system again once all have had their turn.

    asyncio serves every socket that is ready at each pass; with thousands of them a pass takes a second. A request
    needs many passes, as its key, its body and its embeddings each wait for one.
    """

    def __init__(self) -> None:
        """Nothing is registered."""
        super().__init__()
        self._ready: list[tuple[selectors.SelectorKey, int]] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """At most `PORTION` of what is ready, as keys and their events; waits only if nothing is left of earlier."""
        if not self._ready:
            self._ready = super().select(timeout)
        portion, self._ready = self._ready[:PORTION], self._ready[PORTION:]
        registered: Any = self.get_map()
        # Sockets may have been closed, or registered for other events, since they were found to be ready.
        return [(key, events) for key, events in portion if registered.get(key.fd) is key]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """asyncio's own for this system, with that selector except on Windows, where it has none."""
    if sys.platform == "win32":
        return asyncio.ProactorEventLoop()
    return asyncio.SelectorEventLoop(Portions())
