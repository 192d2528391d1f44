"""Limits how much work the server accepts at once. Work over the limit is refused, not queued."""

from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

from comln_serve.counts import Count, SharedCounts
from comln_serve.errors import ErrorCode, ServiceError


def stopping() -> ServiceError:
    """The error for work that comes after `close`."""
    return ServiceError(ErrorCode.NOT_READY, "The server is stopping; try another or try again.")


def waited_too_long(seconds: float, what: str) -> ServiceError:
    """The error for work that waited `seconds` without getting its turn.

    Args:
        what: begins the message, such as "The images".
    """
    return ServiceError(
        ErrorCode.QUEUE_TIMEOUT,
        f"{what} waited {seconds:g} s without getting a turn; the server has more work than it can "
        "do. Nothing was changed; try again later.",
        allowed_seconds=seconds,
    )


_KEPT = 8  # an eighth of the limit is kept for small requests,
_SMALL = 64  # each of at most a 64th of it,
_SMALL_TENANT = 32  # or of tenants that have at most a 32nd of it, with all their requests

_NAMES = {
    Count.IMAGES: "images (each view of an image is one)",
    Count.COMPARISONS: "comparisons with examples (the field examples asks for one)",
}


class Admission:
    """Counts the images, requests or bytes in work, up to a limit for all processes of the server. Thread-safe.

    Work on images is limited by images, not requests: one request of a hundred images counts as
    much as a hundred of one. So that a few large requests keep no small ones out, the last eighth of
    the limit is only for requests of at most a 64th of it. With `by_tenant` it is only for tenants
    that have at most a 32nd of it, with all their requests: no tenant keeps others out.

    Attributes:
        pending: units that this process holds.
        most: units that one request can hold.
    """

    def __init__(
        self, limit: int, unit: Count, shared: SharedCounts, largest: int | None = None, *, by_tenant: bool = False
    ) -> None:
        """Nothing is in work in this process.

        Args:
            largest: units that one request may have, and for which there is room if it is alone; None: all
                requests have one.
            by_tenant: whether tenants are told apart.
        """
        self._limit, self._unit, self._shared, self._by_tenant = limit, unit, shared, by_tenant
        kept, small = limit // _KEPT, limit // (_SMALL_TENANT if by_tenant else _SMALL)
        if by_tenant:
            kept = max(1, kept)  # of few places one
        self.most = max(limit - kept, largest or 1)
        self._small = max(1, small)
        self.pending = 0
        self._lock = Lock()

    @contextmanager
    def admit(self, amount: int = 1, *, tenant: str = "") -> Generator[None, None, None]:
        """Hold `amount` units for the duration of the block.

        Raises:
            ServiceError: OVERLOADED, they exceed the limit.
        """
        self.take(amount, tenant=tenant)
        try:
            yield
        finally:
            self.give_back(amount, tenant=tenant)

    def check(self, tenant: str = "") -> None:
        """Check that there is room for one more unit, without holding it.

        Raises:
            ServiceError: OVERLOADED, there is none.
        """
        self.take(1, tenant=tenant)
        self.give_back(1, tenant=tenant)

    def take(self, amount: int, before: int = 0, *, tenant: str = "") -> None:
        """Hold `amount` units until they are given back.

        Args:
            before: units that the same request has taken already.

        Raises:
            ServiceError: OVERLOADED, they exceed the limit; none are held then.
        """
        with self._lock:
            before = self._shared.of_tenant(self._unit, tenant) if self._by_tenant else before
            limit = self._limit if before + amount <= self._small else self.most
            pending = self._shared.total(self._unit)
            if pending + amount > limit:
                raise ServiceError(
                    ErrorCode.OVERLOADED,
                    f"The server is busy: {pending} {_NAMES.get(self._unit, self._unit.name.lower())} are under way, "
                    f"{amount} more would pass the limit of {limit}. Try again in a moment.",
                    pending=pending,
                    received=amount,
                    limit=limit,
                )
            self._add(amount, tenant)

    def hold(self, amount: int, *, tenant: str = "") -> None:
        """Hold `amount` units that cannot be refused, even over the limit."""
        with self._lock:
            self._add(amount, tenant)

    def give_back(self, amount: int, *, tenant: str = "") -> None:
        """Release `amount` units."""
        with self._lock:
            self._add(-amount, tenant)

    def _add(self, amount: int, tenant: str) -> None:
        self.pending += amount
        if self._by_tenant:
            self._shared.add_of_tenant(self._unit, tenant, amount)
        self._shared.set(self._unit, self.pending)
