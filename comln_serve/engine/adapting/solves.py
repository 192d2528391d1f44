"""Queue of solves: a few run at once, and only one for the same classifier."""

import time
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
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
    """A first come, first served queue of solves. Thread-safe.

    A solve of thousands of images keeps a core busy for seconds and takes more than a hundred
    megabytes: without a limit, all would run out of time, and the process out of memory.
    """

    def __init__(self, at_once: int, max_waiting: int, max_seconds: float, shared: SharedCounts) -> None:
        """An empty queue.

        Args:
            at_once: solves that run at once in this process.
            max_waiting: requests that may wait, in all processes of the server.
            max_seconds: longest wait.
        """
        self._at_once, self._max_seconds = at_once, max_seconds
        self._places = Admission(at_once * shared.processes + max_waiting, Count.ADAPTATIONS, shared)
        self._most_of_one = max(1, max_waiting // (_SHARE_OF_ONE * shared.processes))
        self._changed = Condition()
        self._line: list[tuple[Hashable, object]] = []
        self._solving: list[Hashable] = []

    @classmethod
    def of(cls, settings: Settings, shared: SharedCounts) -> "Solves":
        """The queue of one of the server's processes."""
        at_once = max(1, min(usable_cpus(), _MOST_SOLVES) // shared.processes)
        return cls(at_once, _MOST_WAITING, settings.max_queue_seconds, shared)

    @contextmanager
    def turn(self, check: Callable[[], None], classifier: Hashable) -> Generator[None, None, None]:
        """Wait for a turn, and keep it for the block.

        Args:
            check: called regularly during the wait; an error it raises ends the wait.
            classifier: identifies the classifier to change: turns with equal values never overlap.

        Raises:
            ServiceError: OVERLOADED, too many requests wait already, for this classifier or in all; QUEUE_TIMEOUT.
        """
        with self._places.admit():
            with self._changed:
                self._check_line(classifier)
                self._wait(check, classifier)
                self._solving.append(classifier)
            try:
                yield
            finally:
                with self._changed:
                    self._solving.remove(classifier)
                    self._changed.notify_all()

    def _check_line(self, classifier: Hashable) -> None:
        waiting = sum(ticket[0] == classifier for ticket in self._line)
        if waiting >= self._most_of_one:
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"{waiting} changes of this classifier are waiting already, and at most {self._most_of_one} may: they "
                "run one after another. Try again in a moment, or put several changes into one request.",
                pending=waiting,
                received=1,
                limit=self._most_of_one,
            )

    def _wait(self, check: Callable[[], None], classifier: Hashable) -> None:
        due = time.monotonic() + self._max_seconds
        ticket = (classifier, object())
        self._line.append(ticket)
        try:
            while self._next() is not ticket:
                if time.monotonic() >= due:
                    raise waited_too_long(self._max_seconds, "The adaptation")
                self._changed.wait(_CHECK_S)
                check()
        finally:
            self._line.remove(ticket)
            self._changed.notify_all()

    def _next(self) -> object:
        if len(self._solving) >= self._at_once:
            return None
        return next((ticket for ticket in self._line if ticket[0] not in self._solving), None)
