"""Whether SQLite's file is still the one that was opened.

A file that is moved or deleted stays open: SQLite would go on writing, and acknowledge what nobody
will find again.
"""

import logging
import os
from pathlib import Path
from threading import Lock

logger = logging.getLogger(__name__)


class OpenedFile:
    """The file of a database, as it was when it was opened first. Safe from many threads."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()
        self._opened: tuple[int, int] | None = None
        self._lock = Lock()
        self._wrong: str | None = None

    def opened(self) -> None:
        """A connection has been made."""
        if self._opened is None:
            self._opened = self._there()

    def fault(self) -> str | None:
        """What is wrong with the file, for whoever asked; None where it is the one opened. Told to
        the log once, with its path.
        """
        if self._opened is None:  # nobody has connected yet
            return None
        there = self._there()
        if there == self._opened:
            wrong = None
        elif there is None:
            wrong = "its file is gone; it has to be put back, or the server started anew"
        else:
            # What is remembered of classifiers, and of its schema, would be of another database.
            wrong = "another file has taken the place of its own; the server has to be started anew"
        with self._lock:
            told, self._wrong = self._wrong, wrong
        if wrong != told:
            logger.error("database %s: %s", self._path, wrong or "its file is back")
        return wrong

    def _there(self) -> tuple[int, int] | None:
        """Which file has the name now."""
        try:
            found = os.stat(self._path)  # noqa: PTH116 - asked often, and half as fast by pathlib
        except OSError:
            return None
        return found.st_dev, found.st_ino
