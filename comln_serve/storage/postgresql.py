"""Connections to PostgreSQL with a time limit on answers.

TCP notices a server that is gone. A server that hangs, or a pooler in front of one, still
acknowledges what it receives but never answers: without a limit its clients would wait for ever.
"""

from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

# Longer than the wait for a lock, except that of a migration.
ANSWER_SECONDS = 10.0


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


def connect(_dialect: Any, _record: Any, arguments: list[Any], parameters: dict[str, Any]) -> TimedConnection:
    """Open a connection, for SQLAlchemy's `do_connect` event."""
    return TimedConnection.connect(*arguments, **parameters)
