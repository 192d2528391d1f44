"""What the processes of one server share: how much each of them has in work, when it last ran, and a folder."""

import mmap
import os
from enum import IntEnum, auto
from pathlib import Path

_BYTES = 8


class Count(IntEnum):
    """What is counted for each process: the units it has in work, and four more.

    PID is the process's id; READY whether it has warmed its models; ALIVE the time of `time.monotonic`, in
    milliseconds, at which its event loop last ran; RESTARTS how often the process in its place was replaced.
    """

    REQUESTS = 0
    IMAGES = auto()
    BYTES = auto()
    EXPORTS = auto()
    ADAPTATIONS = auto()
    COMPARISONS = auto()
    PID = auto()
    READY = auto()
    ALIVE = auto()
    RESTARTS = auto()


_SOCKET = "embedder"
# Tenants whose names have the same hash, one of so many, count as one. Hashes differ from start to start.
_HASHES = 2**16


class SharedCounts:
    """Integers in memory that forked processes share; each process writes only its own.

    There is no lock, so a process that is killed leaves none held. The price: processes that admit work in the same
    instant may exceed a limit by what they admit.

    Attributes:
        processes: how many serve.
        process: which of them this one is, from 0.
        embedder: the number of one more process, which embeds for those that serve; None: each embeds by itself.
        folder: for files they share; None: there is only one process.
        parent: the process that made this object, and starts the others.
    """

    def __init__(self, processes: int = 1, folder: Path | None = None, *, embedder: bool = False) -> None:
        """All counts are 0. `embedder`: whether one more process embeds."""
        self.processes, self.process, self.folder = processes, 0, folder
        self.embedder = processes if embedder else None
        self.parent = os.getpid()
        row = len(Count) * _BYTES
        self._values = memoryview(mmap.mmap(-1, len(self.places) * row)).cast("q")
        # Much room, of which memory is taken for the pages of the tenants that are counted.
        self._of_tenants = memoryview(mmap.mmap(-1, len(self.places) * row * _HASHES)).cast("q")

    @property
    def places(self) -> range:
        """The numbers of all processes."""
        return range(self.processes + (self.embedder is not None))

    @property
    def embedder_socket(self) -> Path:
        """The path of the socket that the process that embeds listens on."""
        if self.folder is None:
            raise RuntimeError("a process that embeds needs a folder for its socket")
        return self.folder / _SOCKET

    def of(self, process: int, count: Count) -> int:
        """A count of one process."""
        return self._values[process * len(Count) + count]

    def total(self, count: Count) -> int:
        """A count, summed over the processes."""
        return sum(self._values[count :: len(Count)])

    def of_tenant(self, count: Count, tenant: str) -> int:
        """What a tenant has of a count, summed over the processes."""
        return sum(self._of_tenants[self._slot(0, count, tenant) :: len(Count) * _HASHES])

    def pids(self) -> list[int]:
        """The ids of the processes; this one's if there are no others."""
        return [pid for pid in self._values[Count.PID :: len(Count)] if pid] or [os.getpid()]

    def serving(self) -> int:
        """How many processes serve at the moment."""
        return sum(self.of(process, Count.PID) != 0 for process in range(self.processes)) or 1

    def set(self, count: Count, value: int) -> None:
        """Set this process's own count."""
        self._values[self.process * len(Count) + count] = value

    def add_of_tenant(self, count: Count, tenant: str, amount: int) -> None:
        """Add to what a tenant has in this process."""
        self._of_tenants[self._slot(self.process, count, tenant)] += amount

    def replace(self, process: int) -> None:
        """Set all counts of a process that has ended to 0, but for its restarts, which become one more."""
        restarts = self.of(process, Count.RESTARTS) + 1
        for count in Count:
            self._values[process * len(Count) + count] = restarts if count is Count.RESTARTS else 0
        row = len(Count) * _HASHES
        self._of_tenants[process * row : (process + 1) * row] = memoryview(bytes(row * _BYTES)).cast("q")

    @staticmethod
    def _slot(process: int, count: Count, tenant: str) -> int:
        return (process * len(Count) + count) * _HASHES + hash(tenant) % _HASHES
