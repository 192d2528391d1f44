"""Connections to PostgreSQL with a time limit on answers.

TCP notices a server that is gone. A server that hangs, or a pooler in front of one, still
acknowledges what it receives but never answers: without a limit its clients would wait for ever.
"""

import time
from pathlib import Path
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

# Longer than the wait for a lock, except that of a migration.
ANSWER_SECONDS = 10.0
# For so long no request tries again to connect to a server that did not answer: those that wait for their turn would
# each wait anew.
_PAUSE_SECONDS = 1.0


class TimedConnection(psycopg.Connection[Any]):
    """A connection that is closed if an answer takes longer than ANSWER_SECONDS.

    Attributes:
        patient: wait without a limit.
    """

    patient = False

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Drive one exchange with the server.

        Raises:
            psycopg.OperationalError: the server did not answer; the connection is then closed.
        """
        if timeout is None and not self.patient:
            timeout = ANSWER_SECONDS
        try:
            return super().wait(gen, interval, timeout)
        except psycopg.OperationalError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.pgconn.finish()  # a late answer would be taken for the next one's
            raise


class Connecting:
    """Opens connections, for SQLAlchemy's `do_connect` event. Thread-safe."""

    def __init__(self, password_file: Path | None = None) -> None:
        """`password_file` holds the password, which is read for each connection: it may be exchanged at any time."""
        self._password_file = password_file
        self._silent_until = 0.0

    def __call__(
        self, _dialect: Any, _record: Any, arguments: list[Any], parameters: dict[str, Any]
    ) -> TimedConnection:
        """Open a connection.

        Raises:
            psycopg.OperationalError: the server cannot be reached or refuses; or the file cannot be read.
        """
        if self._password_file is not None:
            parameters = {**parameters, "password": _read_password(self._password_file)}
        if time.monotonic() < self._silent_until:
            raise psycopg.OperationalError("the server did not answer a moment ago")
        try:
            return TimedConnection.connect(*arguments, **parameters)
        except psycopg.errors.ConnectionTimeout:
            self._silent_until = time.monotonic() + _PAUSE_SECONDS
            raise


def _read_password(file: Path) -> str:
    """The text of a file, without a line break at its end."""
    try:
        password = file.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise psycopg.OperationalError(f"the password file {file} cannot be read: {why}") from error
    if not password:
        raise psycopg.OperationalError(f"the password file {file} is empty")
    return password
