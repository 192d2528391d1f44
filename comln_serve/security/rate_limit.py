"""Limits requests per minute with a token bucket for each key, in this process."""

import math
import time
from collections.abc import Callable
from threading import Lock

from cachetools import TTLCache

_MINUTE = 60.0


class RateLimiter:
    """Token buckets that hold a minute's requests and refill evenly. Thread-safe.

    A bucket that was not used for a minute is full again and is removed, so only keys of the last
    minute take memory.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = Lock()
        # By key: requests left, and at what time.
        self._buckets: TTLCache[str, tuple[float, float], float] = TTLCache(math.inf, _MINUTE, clock)

    def take(self, key_id: str, per_minute: int) -> float:
        """Take a request from a key's bucket. Returns 0, or the seconds until one is available."""
        with self._lock, self._buckets.timer as now:
            left, since = self._buckets.get(key_id, (float(per_minute), now))
            left = min(float(per_minute), left + (now - since) * per_minute / _MINUTE)
            wait = max(0.0, 1.0 - left) * _MINUTE / per_minute
            self._buckets[key_id] = (left if wait else left - 1.0), now
            return wait
