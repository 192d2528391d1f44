"""Connections to PostgreSQL that wait for an answer for so long and no longer.

A server that is gone is noticed by TCP. One that has stopped, or a pooler in front of one, goes on
to acknowledge what it receives and never answers; without this its clients would wait for ever.
"""

from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

# Longer than a lock is waited for, but for that of a migration.
ANSWER_SECONDS = 10.0


class Connection(psycopg.Connection[Any]):
    """One that ends when an answer does not come.

    Attributes:
        patient: it waits for ever.
    """

    patient = False

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Drive one exchange with the server.

        Raises:
            psycopg.OperationalError: the server did not answer; the connection is closed then.
        """
        if timeout is None and not self.patient:
            timeout = ANSWER_SECONDS
        try:
            return super().wait(gen, interval, timeout)
        except psycopg.OperationalError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:  # nobody knows with what
                self.pgconn.finish()
            raise


def connect(
    _dialect: Any, _record: Any, arguments: list[Any], parameters: dict[str, Any]
) -> Connection:
    """What SQLAlchemy's `do_connect` event asks for."""
    return Connection.connect(*arguments, **parameters)
