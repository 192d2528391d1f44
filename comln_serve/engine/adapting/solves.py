"""Queue of solves: a few run at once, and only one for the same classifier. Tenants take turns."""

import time
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition

from comln_serve.configuration.settings import Settings
from comln_serve.counts import Count, SharedCounts
from comln_serve.engine.admission import Admission, waited_too_long
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.machine import usable_cpus

# A solve with thousands of support images takes hundreds of megabytes.
_MOST_SOLVES, _MOST_WAITING = 4, 64

# How often a waiting request checks whether it has been cancelled.
_CHECK_S = 0.1

# Changes of one classifier may take half of the places to wait. They run one after another, whatever the number of
# cores: with all places they would keep everybody else out while cores are idle.
_SHARE_OF_ONE = 2


class Solves:
    """A queue of solves, in which tenants take turns, and each is served in order. Thread-safe.

    A solve of thousands of images keeps a core busy for seconds and takes more than a hundred
    megabytes: without a limit, all would run out of time, and the process out of memory.
    """

    def __init__(
        self, at_once: int, max_waiting: int, max_seconds: float, shared: SharedCounts, *, by_tenant: bool = False
    ) -> None:
        """An empty queue.

        Args:
            at_once: solves that run at once in this process.
            max_waiting: requests that may wait, in all processes of the server.
            max_seconds: longest wait.
            by_tenant: as of `Admission`.
        """
        self._at_once, self._max_seconds = at_once, max_seconds
        self._places = Admission(
            at_once * shared.processes + max_waiting, Count.ADAPTATIONS, shared, by_tenant=by_tenant
        )
        self._most_of_one = max(1, max_waiting // (_SHARE_OF_ONE * shared.processes))
        self._changed = Condition()
        self._line: list[_Ticket] = []
        self._served: dict[str, int] = {}  # number of the last turn that each tenant had
        self._turns = 0
        self._solving: list[Hashable] = []

    @classmethod
    def of(cls, settings: Settings, shared: SharedCounts) -> "Solves":
        """The queue of one of the server's processes."""
        at_once = max(1, min(usable_cpus(), _MOST_SOLVES) // shared.processes)
        return cls(at_once, _MOST_WAITING, settings.max_queue_seconds, shared, by_tenant=settings.require_keys)

    @contextmanager
    def turn(self, check: Callable[[], None], classifier: Hashable, tenant: str = "") -> Generator[None, None, None]:
        """Wait for a turn, and keep it for the block.

        Args:
            check: called regularly during the wait; an error it raises ends the wait.
            classifier: identifies the classifier to change: turns with equal values never overlap.
            tenant: whose turn it is.

        Raises:
            ServiceError: OVERLOADED, too many requests wait already, for this classifier or in all; QUEUE_TIMEOUT.
        """
        with self._places.admit(tenant=tenant):
            with self._changed:
                self._check_line(classifier)
                self._wait(check, _Ticket(classifier, tenant))
                self._solving.append(classifier)
            try:
                yield
            finally:
                with self._changed:
                    self._solving.remove(classifier)
                    if not self._line and not self._solving:
                        self._served.clear()
                    self._changed.notify_all()

    def _check_line(self, classifier: Hashable) -> None:
        waiting = sum(ticket.classifier == classifier for ticket in self._line)
        if waiting >= self._most_of_one:
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"{waiting} changes of this classifier are waiting already, and at most {self._most_of_one} may: they "
                "run one after another. Try again in a moment, or put several changes into one request.",
                pending=waiting,
                received=1,
                limit=self._most_of_one,
            )

    def _wait(self, check: Callable[[], None], ticket: "_Ticket") -> None:
        due = time.monotonic() + self._max_seconds
        self._line.append(ticket)
        try:
            while self._next() is not ticket:
                if time.monotonic() >= due:
                    raise waited_too_long(self._max_seconds, "The adaptation")
                self._changed.wait(_CHECK_S)
                check()
            self._turns += 1
            self._served[ticket.tenant] = self._turns
        finally:
            self._line.remove(ticket)
            self._changed.notify_all()

    def _next(self) -> "_Ticket | None":
        """The first ticket of the tenant whose last turn was longest ago."""
        if len(self._solving) >= self._at_once:
            return None
        free = [ticket for ticket in self._line if ticket.classifier not in self._solving]
        return min(free, key=lambda ticket: self._served.get(ticket.tenant, 0), default=None)


@dataclass(frozen=True, eq=False)
class _Ticket:
    """A request that waits to change a classifier."""

    classifier: Hashable
    tenant: str
