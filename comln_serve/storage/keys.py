"""Stores API keys in the database."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, bindparam, func, insert, literal, or_, select, update

from comln_serve.security.keys import ApiKey, Scope
from comln_serve.storage.database import Database
from comln_serve.storage.tables import UtcTime, api_keys
from comln_serve.storage.versions import alive

# Most that the clocks of servers on one database may differ, and the time until a use is stored.
_CLOCKS_DIFFER = timedelta(hours=1)


class KeyStore:
    """Keys of all tenants. Every method may raise `ServiceError` STORAGE_UNAVAILABLE."""

    def __init__(self, database: Database, clock: Callable[[], datetime]) -> None:
        self._database, self._clock = database, clock
        self._used: dict[str, datetime] = {}

    def add(self, key: ApiKey) -> None:
        """Store a new key."""
        values = {**vars(key), "scopes": sorted(key.scopes)}
        with self._database.writing() as connection:
            connection.execute(insert(api_keys).values(values))

    def find(self, key_id: str) -> ApiKey | None:
        """The key with this id, valid or not, or None."""
        with self._database.reading() as connection:
            row = connection.execute(select(api_keys).where(api_keys.c.id == key_id)).first()
        return None if row is None else _to_key(row)

    def all(self) -> list[ApiKey]:
        """Every key, oldest first."""
        query = select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id)
        with self._database.reading() as connection:
            return [_to_key(row) for row in connection.execute(query)]

    def any_valid(self) -> bool:
        """Whether there is a valid key."""
        query = select(api_keys.c.id).where(api_keys.c.revoked_at.is_(None), alive(self._clock(), api_keys)).limit(1)
        with self._database.reading() as connection:
            return connection.execute(query).first() is not None

    def note_use(self, key_id: str) -> None:
        """Remember that a key is used now, until `store_uses`. Waits for nothing."""
        self._used[key_id] = self._clock()

    def store_uses(self) -> None:
        """Store the uses noted since the last call. They are lost if that fails."""
        used, self._used = self._used, {}
        rows = [{"key": key_id, "at": at, "too_late": at + _CLOCKS_DIFFER} for key_id, at in list(used.items())]
        if not rows:
            return
        at, too_late = bindparam("at", type_=UtcTime), bindparam("too_late", type_=UtcTime)
        # Another server may have stored a later use. A time far ahead was stored by a clock that was wrong.
        replaced = or_(api_keys.c.used_at.is_(None), api_keys.c.used_at < at, api_keys.c.used_at > too_late)
        statement = update(api_keys).where(api_keys.c.id == bindparam("key"), replaced).values(used_at=at)
        with self._database.writing() as connection:
            connection.execute(statement, rows)

    def revoke(self, key_id: str) -> bool:
        """Revoke a key, for good. Returns whether it exists."""
        first = func.coalesce(api_keys.c.revoked_at, literal(self._clock(), UtcTime))
        with self._database.writing() as connection:
            query = update(api_keys).where(api_keys.c.id == key_id).values(revoked_at=first)
            return connection.execute(query).rowcount > 0


def _to_key(row: Row[Any]) -> ApiKey:
    values = {column.name: getattr(row, column.name) for column in api_keys.c}
    values["scopes"] = frozenset(map(Scope, values["scopes"]))
    return ApiKey(**values)
