"""Migrates a database to the newest schema at start, or refuses it.

Alembic is imported only for a migration, by the server that has the lock: importing it takes longer than opening a
database that is up to date. Of 17 servers that start together on two cores, the last would be ready in 11 seconds
instead of 2 to 5 if each imported it before.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect, text

from comln_serve.errors import NotYetError, StartupError
from comln_serve.storage.database import LOCK_SECONDS, Database

logger = logging.getLogger(__name__)

MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "comln_schema"
# The newest file in migrations/versions.
NEWEST = "0012"

# How long to wait while another process keeps SQLite's file locked: it may migrate a database of many gigabytes.
WAIT_SECONDS = 600.0
_LOOK_SECONDS = 0.02

# A number that other programs in the same PostgreSQL are unlikely to lock.
_ADVISORY_LOCK = int.from_bytes(b"comln", "big")


def prepare(database: Database) -> None:
    """Make or migrate the tables, if needed. If several servers start together, one migrates and the others wait.

    Raises:
        StartupError: the database cannot be used, is another program's, or of a later release.
        NotYetError: it cannot be reached, or others keep it locked.
    """
    try:
        with database.connection() as connection:
            stamp = _stamp(connection, database)
        if database.is_sqlite:  # before a migration, which would keep others from reading without a write-ahead log
            _while_busy(database, lambda: _use_wal(database))
        if stamp != NEWEST:
            _while_busy(database, lambda: _migrate_alone(database))
    except database.errors as error:
        cause = str(getattr(error, "orig", None) or error).strip()
        end = "" if cause.endswith((".", "?")) else "."
        advice = (
            "Check that the folder exists and can be written to"
            if database.is_sqlite
            else "Check that it is running and lets this user in"
        )
        refusal = NotYetError if database.may_come_back(error) else StartupError
        raise refusal(
            f"cannot use {database.description} as the database of classifiers: "
            f"{cause}{end} {advice}, or choose another --database-url"
        ) from error


def _migrate_alone(database: Database) -> None:
    """Make or migrate the tables, unless another server has done it by the time that this one gets the lock."""
    with database.connection(writes=True) as connection:
        if not database.is_sqlite:  # SQLite has locked the file
            connection.detach()  # from the pool: it is closed after this, and no other becomes patient
            driver: Any = connection.connection.dbapi_connection
            driver.patient = True
            connection.execute(text("SET LOCAL lock_timeout = 0"))
            lock = text("SELECT pg_advisory_xact_lock(:key)")
            connection.execute(lock, {"key": _ADVISORY_LOCK})
        stamp = _stamp(connection, database)
        if stamp not in (None, NEWEST):
            logger.info(
                "migrating %s from schema version %s to %s; a database of gigabytes takes a minute",
                database.description,
                stamp,
                NEWEST,
            )
        if stamp != NEWEST:
            migrate(connection)
        connection.commit()


def migrate(connection: Connection, revision: str = "head") -> None:
    """Migrate to a revision, within the transaction of the connection."""
    from alembic import command  # noqa: PLC0415 - see above
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _stamp(connection: Connection, database: Database) -> str | None:
    """The schema revision of a database, which `prepare` refuses if it is another program's; None if it is empty."""
    tables = inspect(connection).get_table_names()
    if not tables:
        return None
    if VERSION_TABLE not in tables:
        raise StartupError(f"{database.description} is a database of another program; choose another --database-url")
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one_or_none()
    if found is not None and found > NEWEST:
        raise StartupError(
            f"{database.description} has schema version {found}; this release knows up to "
            f"{NEWEST}. Use the release that wrote it, or another --database-url"
        )
    return found


def _use_wal(database: Database) -> None:
    """Switch to write-ahead logging. SQLite fails if another server switches too."""
    with database.connection() as connection:
        connection.rollback()  # the mode cannot change within a transaction
        connection.connection.cursor().execute("PRAGMA journal_mode = WAL")


def _while_busy(database: Database, attempt: Callable[[], None]) -> None:
    """Repeat what fails because another process has locked SQLite's file. PostgreSQL waits by itself."""
    begun, told = time.monotonic(), False
    while True:
        try:
            attempt()
        except database.errors as error:
            waited = time.monotonic() - begun
            if waited > WAIT_SECONDS or not (database.is_sqlite and database.may_come_back(error)):
                raise
            if waited > LOCK_SECONDS and not told:
                told = True
                logger.warning(
                    "%s is locked by another process, which may be migrating it: waiting up to %g s",
                    database.description,
                    WAIT_SECONDS,
                )
            time.sleep(_LOOK_SECONDS)
        else:
            return
