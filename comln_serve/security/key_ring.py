"""Keys in use, so that not every request asks the database."""

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from comln_serve.security.keys import ApiKey

# What is revoked is worth nothing on any server after this time.
_SECONDS = 1.0


class KeyRing:
    """Remembers keys for a second after they were read. Safe from many threads.

    A key that does not exist is not remembered: who makes up ids would otherwise fill the memory.
    """

    def __init__(
        self, find: Callable[[str], ApiKey | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Read with `find`, by id."""
        self._find, self._clock = find, clock
        self._lock = Lock()
        self._keys: OrderedDict[str, tuple[ApiKey, float]] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        return len(self._keys)

    def remembered(self, key_id: str) -> ApiKey | None:
        """The key, if it was read within the last second."""
        with self._lock:
            key, read_at = self._keys.get(key_id, (None, 0.0))
            return key if self._clock() - read_at < _SECONDS else None

    def read(self, key_id: str) -> ApiKey | None:
        """The key, remembered or as it is now. May block; raises what `find` raises."""
        key = self.remembered(key_id)
        if key is not None:
            return key
        began = self._clock()  # what is found may be that old when it arrives
        key = self._find(key_id)
        with self._lock:
            while self._keys and began - next(iter(self._keys.values()))[1] >= _SECONDS:
                self._keys.popitem(last=False)
            self._keys.pop(key_id, None)
            if key is not None:
                self._keys[key_id] = key, began
        return key
