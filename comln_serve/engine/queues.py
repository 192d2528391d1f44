"""Queues of heavy work on classifiers, such as solves: little of it runs at once. Tenants take turns."""

import time
from collections.abc import Generator, Hashable
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition

from comln_serve.configuration.settings import Settings
from comln_serve.counts import Count, SharedCounts
from comln_serve.engine.admission import Admission, waited_too_long
from comln_serve.engine.cancellation import Caller
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.machine import usable_cpus

# A solve with thousands of support images takes hundreds of megabytes and keeps a core busy for seconds: without a
# limit, all would run out of time, and the process out of memory.
_MOST_SOLVES, _MOST_WAITING = 4, 64

# A comparison takes up to 100 MB for the examples' embeddings. In each process one runs, and so many wait.
_MOST_COMPARISONS_WAITING = 15

# How often a waiting request checks whether it has been cancelled.
_CHECK_S = 0.1

# Changes of one classifier may take half of the places to wait. They run one after another, whatever the number of
# cores: with all places they would keep everybody else out while cores are idle.
_SHARE_OF_ONE = 2

_WORDS = {Count.ADAPTATIONS: "The adaptation", Count.COMPARISONS: "The comparison with examples"}


class Queue:
    """A queue in which tenants take turns, and each is served in order. Only one turn of a classifier runs at a time.
    Thread-safe.
    """

    def __init__(
        self,
        unit: Count,
        at_once: int,
        max_waiting: int,
        max_seconds: float,
        shared: SharedCounts,
        *,
        by_tenant: bool = False,
    ) -> None:
        """An empty queue.

        Args:
            unit: what is done in a turn.
            at_once: turns that run at once in this process.
            max_waiting: requests that may wait, in all processes of the server.
            max_seconds: longest wait.
            by_tenant: as of `Admission`.
        """
        self._unit, self._at_once, self._max_seconds = unit, at_once, max_seconds
        self._places = Admission(at_once * shared.processes + max_waiting, unit, shared, by_tenant=by_tenant)
        self._most_of_one = max(1, max_waiting // (_SHARE_OF_ONE * shared.processes))
        self._changed = Condition()
        self._line: list[_Ticket] = []
        self._served: dict[str, float] = {}  # when the last turn of each tenant began
        self._running: list[Hashable] = []

    @classmethod
    def of_solves(cls, settings: Settings, shared: SharedCounts) -> "Queue":
        """The queue of adaptations: a few solve at once, in all processes together."""
        at_once = max(1, min(usable_cpus(), _MOST_SOLVES) // shared.processes)
        seconds, by_tenant = settings.max_queue_seconds, settings.require_keys
        return cls(Count.ADAPTATIONS, at_once, _MOST_WAITING, seconds, shared, by_tenant=by_tenant)

    @classmethod
    def of_comparisons(cls, settings: Settings, shared: SharedCounts) -> "Queue":
        """The queue of comparisons of images with examples."""
        waiting = _MOST_COMPARISONS_WAITING * shared.processes
        return cls(Count.COMPARISONS, 1, waiting, settings.max_queue_seconds, shared, by_tenant=settings.require_keys)

    @contextmanager
    def turn(self, caller: Caller, classifier: Hashable = None) -> Generator[None, None, None]:
        """Wait for a turn, and keep it for the block.

        Args:
            classifier: of the caller's tenant, to be changed: its turns never overlap. None: none is.

        Raises:
            ServiceError: OVERLOADED, too many requests wait already, for this classifier or in all; QUEUE_TIMEOUT;
                CLIENT_GONE.
        """
        ticket = _Ticket(caller, object() if classifier is None else (caller.tenant, classifier))
        with self._places.admit(tenant=caller.tenant):
            with self._changed:
                self._check_line(ticket.classifier)
                self._wait(ticket)
                self._running.append(ticket.classifier)
            try:
                yield
            finally:
                with self._changed:
                    self._running.remove(ticket.classifier)
                    if not self._line and not self._running:
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

    def _wait(self, ticket: "_Ticket") -> None:
        due = time.monotonic() + self._max_seconds
        self._line.append(ticket)
        try:
            while self._next() is not ticket:
                if time.monotonic() >= due:
                    raise waited_too_long(self._max_seconds, _WORDS[self._unit])
                self._changed.wait(_CHECK_S)
                ticket.caller.cancellation.check()
            self._served[ticket.caller.tenant] = time.monotonic()
        finally:
            self._line.remove(ticket)
            self._changed.notify_all()

    def _next(self) -> "_Ticket | None":
        """The first ticket of the tenant whose last turn was longest ago."""
        if len(self._running) >= self._at_once:
            return None
        free = [ticket for ticket in self._line if ticket.classifier not in self._running]
        return min(free, key=lambda ticket: self._served.get(ticket.caller.tenant, 0), default=None)


@dataclass(frozen=True, eq=False)
class _Ticket:
    """A request that waits for its turn."""

    caller: Caller
    classifier: Hashable
