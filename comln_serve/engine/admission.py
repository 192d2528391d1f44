"""How much work is let in at once. Over the limit a caller is told so at once, never queued."""

from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

from comln_serve.errors import ErrorCode, ServiceError


class Admission:
    """A counter with a ceiling, for images, requests or bytes.

    Images are counted rather than requests where work is done, so that one request of a hundred
    images weighs as much as a hundred of one.
    """

    def __init__(self, limit: int, unit: str) -> None:
        self._limit, self._unit = limit, unit
        self._pending = 0
        self._lock = Lock()

    @property
    def pending(self) -> int:
        return self._pending

    @contextmanager
    def admit(self, amount: int = 1) -> Generator[None, None, None]:
        """Hold `amount` units for the duration of the block.

        Raises:
            ServiceError: OVERLOADED, when they would not fit.
        """
        self.take(amount)
        try:
            yield
        finally:
            self.give_back(amount)

    def check(self) -> None:
        """Refuse now what there would be no room for in any case.

        Raises:
            ServiceError: OVERLOADED, when not one more unit fits.
        """
        self.take(1)
        self.give_back(1)

    def take(self, amount: int) -> None:
        """Hold `amount` units until they are given back.

        Raises:
            ServiceError: OVERLOADED, when they would not fit; none are held then.
        """
        with self._lock:
            if self._pending + amount > self._limit:
                raise ServiceError(
                    ErrorCode.OVERLOADED,
                    f"The server is busy: {self._pending} {self._unit} are under way, {amount} "
                    f"more would pass the limit of {self._limit}. Try again in a moment.",
                    pending=self._pending,
                    received=amount,
                    limit=self._limit,
                )
            self._pending += amount

    def hold(self, amount: int) -> None:
        """Hold `amount` units that are there in any case, over the limit if need be."""
        with self._lock:
            self._pending += amount

    def give_back(self, amount: int) -> None:
        """Hold `amount` units less."""
        with self._lock:
            self._pending -= amount
