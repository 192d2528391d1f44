"""Detects that SQLite's file has been moved, deleted or replaced since it was opened.

SQLite keeps a moved or deleted file open: it would acknowledge writes that are lost.
"""

import logging
import os
from pathlib import Path
from threading import Lock

logger = logging.getLogger(__name__)


class OpenedFile:
    """The file of a database, identified when it was first opened. Thread-safe."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()
        self._opened: tuple[int, int] | None = None
        self._lock = Lock()
        self._wrong: str | None = None

    def opened(self) -> None:
        """Record the file's identity at the first connection. Called for every one."""
        if self._opened is None:
            self._opened = self._identity()

    def fault(self) -> str | None:
        """What is wrong with the file; None if it is the opened one. Logs each change once, with the file's path."""
        if self._opened is None:  # no connection yet
            return None
        found = self._identity()
        if found == self._opened:
            wrong = None
        elif found is None:
            wrong = "its file is gone; it has to be put back, or the server started anew"
        else:
            # Cached classifiers and the checked schema are those of the opened file.
            wrong = "another file has taken the place of its own; the server has to be started anew"
        with self._lock:
            logged, self._wrong = self._wrong, wrong
        if wrong != logged:
            logger.error("database %s: %s", self._path, wrong or "its file is back")
        return wrong

    def _identity(self) -> tuple[int, int] | None:
        """Device and inode of the file that has the path now; None if there is none."""
        try:
            found = os.stat(self._path)  # noqa: PTH116 - called often; pathlib takes twice as long
        except OSError:
            return None
        return found.st_dev, found.st_ino
