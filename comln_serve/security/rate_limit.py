"""Limits requests per minute with a token bucket for each key, for all processes of a server together."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock

_MINUTE = 60.0

# Of SQLite's error codes the last byte is the primary one. A full disk is SQLITE_FULL, or SQLITE_IOERR where a file is
# mapped.
_PRIMARY = 0xFF
_UNAVAILABLE = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY}

_CREATE = """
CREATE TABLE IF NOT EXISTS buckets (key TEXT PRIMARY KEY, available REAL, since REAL, taken INTEGER) WITHOUT ROWID
"""
# `available` is what the bucket held before the request, which takes one if there is one.
_TAKE = """
INSERT INTO buckets VALUES (:key, :limit, :now, 1)
ON CONFLICT (key) DO UPDATE SET
    available = min(:limit, available - taken + (:now - since) * :limit / :minute),
    taken = available - taken + (:now - since) * :limit / :minute >= 1,
    since = :now
RETURNING available, taken
"""


class RateLimiter:
    """Token buckets that hold a minute's requests and refill evenly. Thread-safe.

    They are in an SQLite database: processes that share its file share the buckets, and one that is killed leaves no
    lock behind. A bucket that was not used for a minute is full again and is removed, so only keys of the last minute
    take room.
    """

    def __init__(self, file: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Open the buckets.

        Args:
            file: of the database; default: in memory, for this process alone.
            clock: seconds, the same in every process that has the file.
        """
        self._clock, self._lock = clock, Lock()
        self._database = sqlite3.connect(file or ":memory:", isolation_level=None, check_same_thread=False)
        # Survives a process that is killed; what a crash of the machine loses was of the last minute.
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(_CREATE)
        # The event loop waits meanwhile. Others hold the lock for less than a millisecond, unless they are stopped.
        self._database.execute("PRAGMA busy_timeout = 50")
        self._emptied = clock()

    def take(self, key_id: str, per_minute: int) -> float:
        """Take a request from a key's bucket. Returns 0, or the seconds until one is available.

        While the disk of the file is full, or another process keeps the file locked, no request has to wait.
        """
        asked = {"key": key_id, "limit": float(per_minute), "minute": _MINUTE}
        try:
            with self._lock:
                now = self._clock()
                if now - self._emptied >= _MINUTE:
                    self._emptied = now
                    self._database.execute("DELETE FROM buckets WHERE since <= ?", (now - _MINUTE,))
                available, taken = self._database.execute(_TAKE, {**asked, "now": now}).fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & _PRIMARY not in _UNAVAILABLE:
                raise
            return 0.0
        return 0.0 if taken else (1.0 - available) * _MINUTE / per_minute

    def close(self) -> None:
        """Close the database. No call may follow."""
        self._database.close()
