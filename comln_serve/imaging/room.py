"""How many pixels are in memory at once, whoever decodes them."""

from collections.abc import Generator
from contextlib import contextmanager
from threading import Condition, Lock

# An image of so many pixels, a photograph of a phone's screen, is decoded right away: 32 MB.
SMALL = 4_000_000


class Room:
    """Room for large images. A file of a few hundred bytes can hold sixty million pixels, of which
    decoding, orientation and transparency keep up to 16 bytes each: images that many threads decode
    at once are bounded together, not one by one.
    """

    def __init__(self) -> None:
        self._next = Lock()  # whoever holds it is the next to get room
        self._changed = Condition()
        self._held = 0

    @contextmanager
    def hold(self, pixels: int, limit: int) -> Generator[None, None, None]:
        """Wait until there is room for an image that is not `SMALL`, and keep it for the block.

        Args:
            limit: pixels of such images at once; one that is larger is let in alone.
        """
        if pixels <= SMALL:
            yield
            return
        with self._next, self._changed:
            self._changed.wait_for(lambda: self._held == 0 or self._held + pixels <= limit)
            self._held += pixels
        try:
            yield
        finally:
            with self._changed:
                self._held -= pixels
                self._changed.notify()


room = Room()
