"""Who calls the engine, and how running work learns that its result is no longer needed."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from comln_serve.errors import ErrorCode, ServiceError


class Cancellation:
    """A flag that any thread can raise, once; raising it calls the registered callbacks."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._cancelled = False
        self._callbacks: list[Callable[[], None]] = []

    def cancel(self) -> None:
        """Raise the flag and call the callbacks on this thread. Further calls do nothing."""
        with self._lock:
            self._cancelled = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def check(self) -> None:
        """Raise an error if the flag is raised.

        Raises:
            ServiceError: CLIENT_GONE.
        """
        if self._cancelled:
            raise client_gone()

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Generator[None, None, None]:
        """Call `callback` when the flag is raised during the block, at once if it is already."""
        with self._lock:
            late = self._cancelled
            if not late:
                self._callbacks.append(callback)
        if late:
            callback()
        try:
            yield
        finally:
            with self._lock:
                if callback in self._callbacks:
                    self._callbacks.remove(callback)


@dataclass(frozen=True)
class Caller:
    """The caller of a request.

    Attributes:
        tenant: whose classifiers the request can use.
        idempotency_key: repeating a request with its key makes no second classifier.
        cancellation: ends the request's work when raised.
    """

    tenant: str = ""
    idempotency_key: str | None = None
    cancellation: Cancellation = field(default_factory=Cancellation)


def client_gone() -> ServiceError:
    """The error that ends the work of a client that has disconnected; no client receives it."""
    return ServiceError(
        ErrorCode.CLIENT_GONE, "The client closed the connection before it was answered; its work was dropped."
    )
