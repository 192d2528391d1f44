"""Delays refusals, so that clients which ask again at once, whatever Retry-After says, take little of the event loop's
time from others.
"""

import asyncio

# Seconds that a refusal waits, and that it waits at most.
_SHORTEST_S, _LONGEST_S = 0.5, 2.0
# Refusals a second, as long as the longest wait allows.
_RATE = 500


class Refusals:
    """Refusals of one process that wait to be sent."""

    def __init__(self) -> None:
        """None waits."""
        self._waiting = 0

    async def wait(self) -> None:
        """Wait as a refusal: half a second, and longer where more than 250 wait."""
        self._waiting += 1
        try:
            await asyncio.sleep(min(_LONGEST_S, max(_SHORTEST_S, self._waiting / _RATE)))
        finally:
            self._waiting -= 1
