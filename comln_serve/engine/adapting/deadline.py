"""Flags that are raised after a time and that compiled code can read."""

import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from threading import Condition, Thread

import numpy as np
from numpy.typing import NDArray

Flag = NDArray[np.bool_]

# Python limits the length of a wait. Waking up early does no harm.
_LONGEST_S = 3600.0


@contextmanager
def raised_after(seconds: float) -> Generator[Flag, None, None]:
    """A (1,) array that another thread sets to True after `seconds`, if the block still runs."""
    flag = np.zeros(1, dtype=np.bool_)
    _watch.add(flag, time.monotonic() + seconds)
    try:
        yield flag
    finally:
        _watch.remove(flag)


class _Watch:
    """One thread for all flags: starting a thread for each would cost a tenth of most solves.

    It sleeps until the earliest deadline it knows of, even if that flag is removed meanwhile. Flags
    with the same timeout therefore hardly ever wake it.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        # Deadline and flag, by id: arrays have no hash.
        self._flags: dict[int, tuple[float, Flag]] = {}
        self._wakes_at = math.inf
        self._thread: Thread | None = None

    def add(self, flag: Flag, due: float) -> None:
        with self._changed:
            if self._thread is None or not self._thread.is_alive():  # as after a fork
                thread = Thread(target=self._raise_flags, name="deadlines", daemon=True)
                thread.start()
                self._thread, self._wakes_at = thread, math.inf
            self._flags[id(flag)] = due, flag
            if due < self._wakes_at:
                self._changed.notify()

    def remove(self, flag: Flag) -> None:
        with self._changed:
            self._flags.pop(id(flag), None)

    def _raise_flags(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for key, (due, flag) in list(self._flags.items()):
                    if due <= now:
                        flag.fill(True)
                        del self._flags[key]
                self._wakes_at = min((due for due, _ in self._flags.values()), default=math.inf)
                self._changed.wait(min(self._wakes_at - now, _LONGEST_S))


_watch = _Watch()
