"""A cache with a short lifetime, so that not every request queries the database."""

import math
import time
from collections.abc import Callable
from threading import Lock
from typing import ClassVar, Generic, TypeVar

from cachetools import TLRUCache

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class ShortMemory(Generic[_Key, _Value]):
    """Caches values for `seconds`, during which it may miss other servers' changes. Thread-safe.

    It does not cache the absence of a value: clients that invent keys would fill the memory.
    """

    seconds: ClassVar[float]

    def __init__(self, find: Callable[[_Key], _Value | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._find, self._clock = find, clock
        self._lock = Lock()
        # Each entry is a value and the time at which it expires.
        self._entries: TLRUCache[_Key, tuple[_Value, float], float]
        self._entries = TLRUCache(math.inf, lambda _key, entry, _now: entry[1], clock)
        self._forgotten = 0  # number of calls of `forget`

    def remembered(self, key: _Key) -> _Value | None:
        """The value, if it was read within the last `seconds`."""
        with self._lock:
            entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def read(self, key: _Key) -> _Value | None:
        """The value, cached or from `find`. May block; raises what `find` raises."""
        value = self.remembered(key)
        if value is not None:
            return value
        expires = self._clock() + self.seconds  # the value may be as old as the start of the query
        forgotten = self._forgotten
        value = self._find(key)
        with self._lock:
            # After a `forget` during the query, the value may be from before the change.
            if value is not None and forgotten == self._forgotten:
                self._entries[key] = value, expires
        return value

    def forget(self, which: Callable[[_Key], bool]) -> None:
        """Drop the keys that `which` accepts."""
        with self._lock:
            self._forgotten += 1
            for key in filter(which, list(self._entries)):
                self._entries.pop(key, None)
