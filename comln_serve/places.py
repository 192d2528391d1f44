"""Places for threads, for which tenants take turns."""

from threading import Event, Lock

from comln_serve.turns import Turns


class Places:
    """A number of places. Threads that wait for one take turns by tenant, however many each has. Thread-safe."""

    def __init__(self, count: int) -> None:
        """All are free."""
        self._free = count
        self._waiting = Turns[Event]()
        self._lock = Lock()

    def take(self, tenant: str | None, seconds: float, ticket: Event | None = None) -> bool:
        """Wait for a place for at most `seconds`, or until another thread sets the ticket. Returns whether there was
        one; it has to be given back then.
        """
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            ticket = ticket or Event()
            self._waiting.add(tenant, ticket)
        ticket.wait(seconds)
        with self._lock:
            return not self._waiting.remove(tenant, ticket)  # else it was given a place, perhaps just now

    def give_back(self) -> None:
        """Give a place to the thread whose turn it is, or free it if none waits."""
        with self._lock:
            if self._waiting:
                self._waiting.take().set()
            else:
                self._free += 1
