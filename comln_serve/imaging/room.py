"""How many pixels are in memory at once, whoever decodes them."""

from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Condition

# An image of so many pixels, a photograph of a phone's screen, is decoded right away: 32 MB.
SMALL = 4_000_000


# How often who waits looks whether it is still wanted.
_LOOK_S = 0.1


class Room:
    """Room for large images. A file of a few hundred bytes can hold sixty million pixels, of which
    decoding, orientation and transparency keep up to 16 bytes each: images that many threads decode
    at once are bounded together, not one by one.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._line: deque[object] = deque()
        self._held = 0

    @contextmanager
    def hold(
        self, pixels: int, limit: int, check: Callable[[], None] = lambda: None
    ) -> Generator[None, None, None]:
        """Wait until there is room for an image that is not `SMALL`, and keep it for the block;
        first come, first served.

        Args:
            limit: pixels of such images at once; one that is larger is let in alone.
            check: called now and then while it waits; what it raises ends the wait.
        """
        if pixels <= SMALL:
            yield
            return
        ticket = object()
        with self._changed:
            self._line.append(ticket)
            try:
                while self._line[0] is not ticket or 0 < self._held > limit - pixels:
                    if not self._changed.wait(_LOOK_S):
                        check()
                self._held += pixels
            finally:
                self._line.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._held -= pixels
                self._changed.notify_all()


room = Room()
