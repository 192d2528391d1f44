"""Several processes that serve behind one socket: starts them, passes signals on, replaces one that dies or hangs."""

import logging
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import FrameType

from comln_serve.api.observe.metric_files import forget_gauges
from comln_serve.counts import Count, SharedCounts
from comln_serve.server.hangup import on_hangup

logger = logging.getLogger(__name__)

_ENDING = (signal.SIGTERM, signal.SIGINT)
_HELD = (*_ENDING, signal.SIGHUP)

# A process whose event loop has not run for so long is killed. Nothing that clients can ask for holds it for a second.
_HANGS_AFTER_S = 30.0
# How often to look for such a process.
_LOOK_S = 1.0
# A process that dies at once is not started anew more often than that.
_PAUSE_S = 1.0


class Supervisor:
    """The parent of the processes that serve. It serves nothing itself, and runs no threads, so that it can fork."""

    def __init__(self, shared: SharedCounts, work: Callable[[], int], prepare: Callable[[], None]) -> None:
        """Nothing is started yet.

        Args:
            work: serves, in a process of its own, until a signal; returns its exit status.
            prepare: loads what later processes share with this one, once the first is ready.
        """
        self._shared, self._work, self._prepare = shared, work, prepare
        self._fork = multiprocessing.get_context("fork")
        self._running: dict[int, BaseProcess] = {}
        self._start_at = [0.0] * shared.processes
        self._looked_at = -math.inf
        self._stopping = False

    def run(self) -> int:
        """Serve until a signal. Returns the exit status: that of the first process if it never gets ready."""
        for number in _ENDING:
            signal.signal(number, self._end)
        on_hangup(lambda: self._send(signal.SIGHUP))
        self._start(0)
        if not self._running:
            return 0  # told to end before anything was started
        while not self._shared.of(0, Count.READY):
            if (status := self._running[0].exitcode) is not None:
                return 0 if self._stopping else abs(status)
            wait([self._running[0].sentinel], 0.05)
        self._prepare()
        while not self._stopping:
            self._start_missing()
            wait([process.sentinel for process in self._running.values()], _LOOK_S)
            self._end_hanging()
            self._forget_dead()
        for process in self._running.values():
            process.join()
        return max((_status(process) for process in self._running.values()), default=0)

    def _start_missing(self) -> None:
        for place in range(self._shared.processes):
            if place not in self._running and time.monotonic() >= self._start_at[place]:
                self._start(place)

    def _start(self, place: int) -> None:
        with _signals_held():
            if self._stopping:
                return  # the signal has been passed on already, and would not reach this one
            process = self._fork.Process(target=self._begin, args=(place,), name=f"worker {place}")
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

    def _end_hanging(self) -> None:
        before, self._looked_at = self._looked_at, time.monotonic()
        if self._looked_at - before > _HANGS_AFTER_S / 2:
            return  # this process was stopped, and the others probably with it, as by `docker pause`
        late = 1000 * (time.monotonic() - _HANGS_AFTER_S)
        for place, process in self._running.items():
            if 0 < self._shared.of(place, Count.ALIVE) < late:
                logger.error("worker %d (process %d) hangs: killed", place, process.pid)
                process.kill()
                process.join()

    def _forget_dead(self) -> None:
        for place, process in list(self._running.items()):
            if process.exitcode is None or self._stopping:
                continue
            logger.error(
                "worker %d (process %d) ended with status %d; another takes its place",
                place,
                process.pid,
                process.exitcode,
            )
            del self._running[place]
            self._shared.replace(place)
            if self._shared.folder is not None:
                forget_gauges(self._shared.folder, place)

    def _end(self, number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        self._send(number)

    def _send(self, number: int) -> None:
        for process in self._running.values():
            if process.exitcode is None and process.pid is not None:
                os.kill(process.pid, number)


def _status(process: BaseProcess) -> int:
    """Exit status of a process that was told to end. One that was still loading dies of the signal, as it should."""
    status = process.exitcode or 0
    return 0 if -status in _ENDING else abs(status)


@contextmanager
def _signals_held() -> Generator[None, None, None]:
    """Deliver no signal during the block: a process that is being started has its parent's handlers."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
