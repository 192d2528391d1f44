"""Queues of heavy work on classifiers, such as solves: little of it runs at once. Tenants take turns."""

import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from threading import Event, Lock

from comln_serve.configuration.settings import Settings
from comln_serve.counts import Count, SharedCounts
from comln_serve.engine.admission import Admission, waited_too_long
from comln_serve.engine.cancellation import Caller
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.machine import usable_cpus
from comln_serve.places import Places

# A solve with thousands of support images takes hundreds of megabytes and keeps a core busy for seconds: without a
# limit, all would run out of time, and the process out of memory.
_MOST_SOLVES, _MOST_WAITING = 4, 64

# A comparison takes up to 100 MB for the examples' embeddings. In each process one runs, and so many wait.
_MOST_COMPARISONS_WAITING = 15

# Changes of one classifier may take half of the places to wait. They run one after another, whatever the number of
# cores: with all places they would keep everybody else out while cores are idle.
_SHARE_OF_ONE = 2

_WORDS = {Count.ADAPTATIONS: "The adaptation", Count.COMPARISONS: "The comparison with examples"}


class Queue:
    """A queue in which tenants take turns, and each is served in order. Only one turn of a classifier runs at a time.
    Thread-safe.
    """

    def __init__(self, unit: Count, settings: Settings, shared: SharedCounts, at_once: int, max_waiting: int) -> None:
        """An empty queue.

        Args:
            unit: what is done in a turn.
            at_once: turns that run at once in this process.
            max_waiting: requests that may wait, in all processes of the server.
        """
        self._unit, self._max_seconds = unit, settings.max_queue_seconds
        most = at_once * shared.processes + max_waiting
        self._admission = Admission(most, unit, shared, by_tenant=settings.require_keys)
        self._most_of_one = max(1, max_waiting // (_SHARE_OF_ONE * shared.processes))
        self._places = Places(at_once)
        self._lock = Lock()
        # By tenant and classifier: its one place, and how many have it or wait for it.
        self._of_one: dict[tuple[str, str], tuple[Places, int]] = {}

    @classmethod
    def of_solves(cls, settings: Settings, shared: SharedCounts) -> "Queue":
        """The queue of adaptations: a few solve at once, in all processes together."""
        at_once = max(1, min(usable_cpus(), _MOST_SOLVES) // shared.processes)
        return cls(Count.ADAPTATIONS, settings, shared, at_once, _MOST_WAITING)

    @classmethod
    def of_comparisons(cls, settings: Settings, shared: SharedCounts) -> "Queue":
        """The queue of comparisons of images with examples."""
        return cls(Count.COMPARISONS, settings, shared, 1, _MOST_COMPARISONS_WAITING * shared.processes)

    @contextmanager
    def turn(self, caller: Caller, classifier: str | None = None) -> Generator[None, None, None]:
        """Wait for a turn, and keep it for the block.

        Args:
            classifier: of the caller's tenant, to be changed: its turns never overlap. None: none is.

        Raises:
            ServiceError: OVERLOADED, too many requests wait already, for this classifier or in all; QUEUE_TIMEOUT;
                CLIENT_GONE.
        """
        due = time.monotonic() + self._max_seconds
        with self._admission.admit(tenant=caller.tenant), ExitStack() as held:
            if classifier is not None:  # its place comes first: who waits for that takes none from others
                one = held.enter_context(self._alone(caller, classifier))
                held.enter_context(self._place(one, caller, due))
            held.enter_context(self._place(self._places, caller, due))
            yield

    @contextmanager
    def _alone(self, caller: Caller, classifier: str) -> Generator[Places, None, None]:
        """The one place for changes of a classifier."""
        key = caller.tenant, classifier
        with self._lock:
            one, users = self._of_one.get(key, (Places(1), 0))
            if users > self._most_of_one:
                raise ServiceError(
                    ErrorCode.OVERLOADED,
                    f"{users - 1} changes of this classifier are waiting already, and at most {self._most_of_one} may: "
                    "they run one after another. Try again in a moment, or put several changes into one request.",
                    pending=users - 1,
                    received=1,
                    limit=self._most_of_one,
                )
            self._of_one[key] = one, users + 1
        try:
            yield one
        finally:
            with self._lock:
                one, users = self._of_one.pop(key)
                if users > 1:
                    self._of_one[key] = one, users - 1

    @contextmanager
    def _place(self, places: Places, caller: Caller, due: float) -> Generator[None, None, None]:
        gone = Event()
        with caller.cancellation.calling(gone.set):
            found = places.take(caller.tenant, max(0.0, due - time.monotonic()), gone)
        if not found:
            caller.cancellation.check()
            raise waited_too_long(self._max_seconds, _WORDS[self._unit])
        try:
            yield
        finally:
            places.give_back()
