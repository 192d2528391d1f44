"""The store: one database with the classifiers and API keys of every tenant."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import delete, func, select, tuple_

from comln_serve.storage import tallies
from comln_serve.storage.classifiers import Check, TenantStore, allow
from comln_serve.storage.database import Database
from comln_serve.storage.keys import KeyStore
from comln_serve.storage.schema import prepare
from comln_serve.storage.tables import classifiers, idempotency_keys, tenants, thumbnails

_AT_ONCE = 500  # rows deleted in a transaction
_THUMBNAILS_AT_ONCE = 50  # classifiers whose thumbnails are: 15 MB at most


def utc_now() -> datetime:
    """The current time, UTC."""
    return datetime.now(UTC)


class Store:
    """Durable classifiers. Safe from many threads, and from many servers on one database.

    A change survives a crash of the process or the machine once its call has returned. Methods that query may raise
    `ServiceError` STORAGE_UNAVAILABLE.
    """

    def __init__(self, url: str, clock: Callable[[], datetime] = utc_now) -> None:
        """Open the database at `sqlite:///FILE` or `postgresql://...`, and make or migrate its tables.

        Raises:
            StartupError: the URL has another form, or the database cannot be used; the message says why.
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
        """The database's file or URL, without its password."""
        return self._database.description

    def for_tenant(self, tenant: str, *, show_thumbnails: bool = False, check: Check = allow) -> TenantStore:
        """The classifiers of one tenant, with their thumbnails if asked for. Needs no closing."""
        return TenantStore(self._database, tenant, self._clock, show_thumbnails=show_thumbnails, check=check)

    def is_past(self, moment: datetime) -> bool:
        """Whether an expiry time has passed."""
        return moment <= self._clock()

    def count(self) -> int:
        """The number of classifiers. Also serves as the check that the store can be reached."""
        stored = select(func.coalesce(func.sum(tenants.c.stored), 0)).scalar_subquery()
        expired = select(func.count()).where(classifiers.c.expires_at <= self._clock()).scalar_subquery()
        with self._database.reading() as connection:
            return int(connection.execute(select(stored - expired)).scalar_one())

    def models(self) -> dict[str, int]:
        """The number of classifiers by the name of their model, those that have expired and are not yet deleted
        included.
        """
        with self._database.reading() as connection:
            rows = connection.execute(select(classifiers.c.model, func.count()).group_by(classifiers.c.model)).all()
        return {str(row[0]): int(row[1]) for row in rows}

    def purge(self) -> int:
        """Delete expired classifiers, which queries skip already, and idempotency keys. Returns
        the number of classifiers.
        """
        now, removed = self._clock(), 0
        # In several transactions, so that other writers need not wait for all.
        while lot := self._purge_classifiers(now):
            removed += lot
        while self._purge_keys(now):
            pass
        return removed

    def delete_thumbnails(self) -> int:
        """Delete the thumbnails of all tenants. Returns their number."""
        removed = 0
        some = select(thumbnails.c.classifier).distinct().limit(_THUMBNAILS_AT_ONCE)
        while True:
            with self._database.single_read() as connection:
                lot = connection.execute(some).scalars().all()
            if not lot:
                break
            with self._database.writing() as connection:
                removed += connection.execute(delete(thumbnails).where(thumbnails.c.classifier.in_(lot))).rowcount
        if removed:
            self._database.overwrite_deleted()
        return removed

    def _purge_classifiers(self, now: datetime) -> int:
        """Delete some expired classifiers. Returns their number."""
        some = select(classifiers.c.sequence, classifiers.c.tenant).where(classifiers.c.expires_at <= now)
        with self._database.writing() as connection:
            found = connection.execute(some.limit(_AT_ONCE)).all()
            if not found:
                return 0
            tallies.lock(connection, {row.tenant for row in found})
            # Another server may have deleted some of them before that.
            query = delete(classifiers).where(classifiers.c.sequence.in_([row.sequence for row in found]))
            gone = connection.execute(query.returning(classifiers.c.tenant)).scalars().all()
            for tenant, number in Counter(gone).items():
                tallies.count_deleted(connection, tenant, number)
        return len(gone)

    def _purge_keys(self, now: datetime) -> int:
        """Delete some expired idempotency keys. Returns their number."""
        key, expired = tuple_(idempotency_keys.c.tenant, idempotency_keys.c.key), idempotency_keys.c.expires_at <= now
        some = select(idempotency_keys.c.tenant, idempotency_keys.c.key).where(expired).limit(_AT_ONCE)
        # Looked at once more: PostgreSQL waits for a request that claims an expired key anew, and would delete it then.
        query = delete(idempotency_keys).where(key.in_(some), expired)
        with self._database.writing() as connection:
            return connection.execute(query).rowcount

    def close(self) -> None:
        """Close all connections. No call may follow."""
        self._database.close()
