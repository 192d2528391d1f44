"""Several processes that serve behind one socket: starts them, passes signals on, replaces one that dies or hangs.

With them, one more that embeds for all, if the server is to have one: it starts first and ends last.
"""

import logging
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import FrameType

from comln_serve.api.observe.metric_files import forget_gauges
from comln_serve.counts import Count, SharedCounts
from comln_serve.errors import StartupError
from comln_serve.server.hangup import on_hangup

logger = logging.getLogger(__name__)

_ENDING = (signal.SIGTERM, signal.SIGINT)

# A process whose event loop has not run for so long is killed. Nothing that clients can ask for holds it for a second.
_HANGS_AFTER_S = 30.0
# How often to look for such a process.
_LOOK_S = 1.0
# A process that dies at once is not started anew more often than that.
_PAUSE_S = 1.0
# Replacements of the process that embeds after which a server that is not ready yet gives up.
_MOST_FAILURES = 4


class Supervisor:
    """The parent of the processes that serve. It serves nothing itself, and runs no threads, so that it can fork."""

    def __init__(self, shared: SharedCounts, work: Callable[[], int], prepare: Callable[[], None]) -> None:
        """Nothing is started yet.

        Args:
            work: serves, or embeds, in a process of its own; returns its exit status.
            prepare: loads what later processes share with this one, once the first is ready.
        """
        self._shared, self._work, self._prepare = shared, work, prepare
        # The place of the process that embeds, if there is to be one.
        self._embedder = () if shared.embedder is None else (shared.embedder,)
        self._fork = multiprocessing.get_context("fork")
        self._running: dict[int, BaseProcess] = {}
        self._start_at = [0.0] * len(shared.places)
        self._looked_at = -math.inf
        self._stopping = False

    def run(self) -> int:
        """Serve until a signal. Returns the exit status: that of the first process if it never gets ready.

        Raises:
            StartupError: the process that embeds ends again and again before the server is ready.
        """
        for number in _ENDING:
            signal.signal(number, self._end)
        on_hangup(lambda: self._send(signal.SIGHUP))
        try:
            ready = self._start_first()
            if ready:
                self._prepare()
            while ready and not self._stopping:
                self._keep_running(self._shared.places, _LOOK_S)
            serving = [process for place, process in self._running.items() if place not in self._embedder]
            while any(process.exitcode is None for process in serving):  # they drain, which may need embeddings
                self._keep_running(self._embedder, _LOOK_S)
            return max(map(self._status, serving), default=0)
        finally:
            self._end_embedder()

    def _start_first(self) -> bool:
        """Start the process that embeds, if any, and the first that serves. Returns whether the latter got ready."""
        self._start_missing((*self._embedder, 0))
        while not self._stopping and self._running[0].exitcode is None and not self._shared.of(0, Count.READY):
            self._keep_running(self._embedder, 0.05)
            if any(self._shared.of(place, Count.RESTARTS) > _MOST_FAILURES for place in self._embedder):
                self._running[0].kill()
                self._running[0].join()
                raise StartupError(
                    f"the process that embeds ended {_MOST_FAILURES + 1} times before the server was ready; the log "
                    "may say why. Start with --embedding-process off to embed in each worker"
                )
        return bool(self._shared.of(0, Count.READY))

    def _end_embedder(self) -> None:
        """End the process that embeds, once those that it embeds for have drained. It has nothing to lose."""
        for place in self._embedder:
            if place in self._running:
                self._running[place].kill()
                self._running[place].join()

    def _keep_running(self, places: Iterable[int], seconds: float) -> None:
        """Start the missing processes of these places. Wait until one ends, at most `seconds`; kill those that hang."""
        self._start_missing(places)
        wait([process.sentinel for process in self._running.values() if process.exitcode is None], seconds)
        self._end_hanging(places)
        self._forget_dead(places)

    def _start_missing(self, places: Iterable[int]) -> None:
        for place in places:
            if place in self._running or time.monotonic() < self._start_at[place]:
                continue
            with _signals_held():
                if self._stopping and place not in self._embedder:
                    continue  # the signal has been passed on already, and would not reach this one
                process = self._fork.Process(target=self._begin, args=(place,), name=self._name(place))
                process.start()
                self._running[place] = process
            self._start_at[place] = time.monotonic() + _PAUSE_S

    def _begin(self, place: int) -> None:
        """Serve, in the new process."""
        # Of its own, without a terminal: Ctrl-C and the end of the terminal reach the parent, which passes them on.
        os.setsid()
        for number in _ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)  # SIGHUP waits until the models are there
        self._shared.process = place
        self._shared.set(Count.PID, os.getpid())
        raise SystemExit(self._work())

    def _end_hanging(self, places: Iterable[int]) -> None:
        before, self._looked_at = self._looked_at, time.monotonic()
        if self._looked_at - before > _HANGS_AFTER_S / 2:
            return  # this process was stopped, and the others probably with it, as by `docker pause`
        late = 1000 * (time.monotonic() - _HANGS_AFTER_S)
        for place in places:
            if place in self._running and 0 < self._shared.of(place, Count.ALIVE) < late:
                process = self._running[place]
                logger.error("%s (process %d) hangs: killed", self._name(place), process.pid)
                process.kill()
                process.join()

    def _forget_dead(self, places: Iterable[int]) -> None:
        for place in places:
            process = self._running.get(place)
            if process is None or process.exitcode is None:
                continue
            if self._stopping and place not in self._embedder:
                continue  # the signal to stop has ended it
            logger.error(
                "%s (process %d) ended with status %d; another takes its place",
                self._name(place),
                process.pid,
                process.exitcode,
            )
            del self._running[place]
            self._shared.replace(place)
            if self._shared.folder is not None and place not in self._embedder:
                forget_gauges(self._shared.folder, place)

    def _name(self, place: int) -> str:
        """What the log calls a process."""
        return "embedder" if place in self._embedder else f"worker {place}"

    def _end(self, number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        self._send(number)

    def _status(self, process: BaseProcess) -> int:
        """Exit status of a process that has ended. One that was still loading dies of the signal, as it should."""
        status = process.exitcode or 0
        return 0 if self._stopping and -status in _ENDING else abs(status)

    def _send(self, number: int) -> None:
        for place, process in self._running.items():
            if place not in self._embedder and process.exitcode is None and process.pid is not None:
                os.kill(process.pid, number)


@contextmanager
def _signals_held() -> Generator[None, None, None]:
    """Deliver no signal during the block: a process that is being started has its parent's handlers."""
    held = (*_ENDING, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
