"""What the database said a moment ago, so that not every request asks it."""

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import ClassVar, Generic, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class ShortMemory(Generic[_Key, _Value]):
    """Remembers what was read for `seconds`, in which other servers' changes may go unseen. Safe
    from many threads.

    What does not exist is not remembered: who makes up keys would otherwise fill the memory.
    """

    seconds: ClassVar[float]

    def __init__(
        self,
        find: Callable[[_Key], _Value | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read with `find`."""
        self._find, self._clock = find, clock
        self._lock = Lock()
        self._entries: OrderedDict[_Key, tuple[_Value, float]] = OrderedDict()  # oldest first
        self._forgotten = 0  # times

    def __len__(self) -> int:
        return len(self._entries)

    def remembered(self, key: _Key) -> _Value | None:
        """The value, if it was read within the last `seconds`."""
        with self._lock:
            entry = self._entries.get(key)
        if entry is None or self._clock() - entry[1] >= self.seconds:
            return None
        return entry[0]

    def read(self, key: _Key) -> _Value | None:
        """The value, remembered or as it is now. May block; raises what `find` raises."""
        value = self.remembered(key)
        if value is not None:
            return value
        began = self._clock()  # what is found may be that old when it arrives
        forgotten = self._forgotten
        value = self._find(key)
        with self._lock:
            while self._entries and began - next(iter(self._entries.values()))[1] >= self.seconds:
                self._entries.popitem(last=False)
            self._entries.pop(key, None)
            # What was forgotten meanwhile may have been this, as it was before a change.
            if value is not None and forgotten == self._forgotten:
                self._entries[key] = value, began
        return value

    def forget(self, which: Callable[[_Key], bool]) -> None:
        """Read anew whatever is asked for by such keys."""
        with self._lock:
            self._forgotten += 1
            for key in [key for key in self._entries if which(key)]:
                del self._entries[key]
