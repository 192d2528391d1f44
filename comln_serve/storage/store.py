"""The store: one database with the classifiers of every tenant, and the keys to them."""

from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import delete, func, select

from comln_serve.storage.classifiers import TenantStore
from comln_serve.storage.database import Database
from comln_serve.storage.keys import KeyStore
from comln_serve.storage.schema import prepare
from comln_serve.storage.tables import classifiers, idempotency_keys
from comln_serve.storage.versions import alive

Clock = Callable[[], datetime]

_AT_ONCE = 500  # expired classifiers removed in a transaction


def utc_now() -> datetime:
    """The time, UTC."""
    return datetime.now(UTC)


class Store:
    """Durable classifiers. Safe to call from many threads, and from many servers on one database.

    What a call has written survives a crash of the process or the machine once it returns.
    """

    def __init__(self, url: str, clock: Clock = utc_now) -> None:
        """Open the database, and make or migrate its tables.

        Raises:
            StartupError: it cannot be used; the message says why.
        """
        self._database = Database(url)
        self._clock = clock
        self.keys = KeyStore(self._database, clock)
        try:
            prepare(self._database)
        except BaseException:
            self._database.close()
            raise

    @property
    def description(self) -> str:
        """The database, without its password."""
        return self._database.description

    def for_tenant(self, tenant: str) -> TenantStore:
        """The classifiers of one tenant; there is nothing to close."""
        return TenantStore(self._database, tenant, self._clock)

    def is_past(self, moment: datetime | None) -> bool:
        """Whether what expires at that moment has; what expires never has not."""
        return moment is not None and moment <= self._clock()

    def count(self) -> int:
        """How many classifiers there are. Also the check that the store can be reached.

        Raises:
            ServiceError: STORAGE_UNAVAILABLE.
        """
        with self._database.reading() as connection:
            query = select(func.count()).select_from(classifiers).where(alive(self._clock()))
            return connection.execute(query).scalar_one()

    def purge(self) -> int:
        """Remove what has expired: classifiers, which nobody has found since, and idempotency
        keys. How many classifiers it was.

        Raises:
            ServiceError: STORAGE_UNAVAILABLE.
        """
        now, removed = self._clock(), 0
        some = select(classifiers.c.sequence).where(classifiers.c.expires_at <= now).limit(_AT_ONCE)
        while True:  # a transaction for each lot: nobody waits for all that has piled up
            with self._database.writing() as connection:
                query = delete(classifiers).where(classifiers.c.sequence.in_(some))
                lot = connection.execute(query).rowcount
            removed += lot
            if lot < _AT_ONCE:
                break
        with self._database.writing() as connection:
            connection.execute(delete(idempotency_keys).where(idempotency_keys.c.expires_at <= now))
        return removed

    def close(self) -> None:
        """Release what is held; no call may follow."""
        self._database.close()
