"""Connects to SQLite or PostgreSQL: URLs, transactions, and errors if the database fails."""

import logging
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from comln_serve.errors import ErrorCode, ServiceError, StartupError
from comln_serve.places import Places
from comln_serve.storage.opened_file import OpenedFile

logger = logging.getLogger(__name__)

_SQLITE, _POSTGRESQL = "sqlite:///", "postgresql://"
_BEGIN, _BEGIN_WRITING = "comln_begin", "BEGIN IMMEDIATE"

LOCK_SECONDS = 5.0
_LOOK_SECONDS = 0.001
_NOT_KNOWN = "Whether the change was made is not known: look, or repeat it with the same Idempotency-Key."
_CONNECT_SECONDS = 3
# Parameter of a URL that is this server's. libpq's own `passfile` has to be readable by its user alone, which a secret
# that is mounted into a container seldom is.
_FILE_PARAMETER = "password_file"
_SILENCE_MILLISECONDS = 10_000
_POOL_SIZE = 16
# Threads that read an SQLite file at once: more would mostly wait for the GIL, which each lets go of many times.
_SQLITE_READERS = 4


class Database:
    """Transactions on one database. Safe from many threads and many servers. Those that cannot be used raise
    `ServiceError` STORAGE_UNAVAILABLE, but for `connection`.

    SQLite uses a write-ahead log and flushes it at every commit. Writing transactions begin with
    BEGIN IMMEDIATE: one that first reads and then finds the file locked would have to start over.
    """

    def __init__(self, url: str) -> None:
        """Set up the connection pool, without connecting yet.

        Raises:
            StartupError: the URL has another form, or PostgreSQL's driver is not installed.
        """
        self.url = parse_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        # Without the driver, as the user wrote it, and without the password.
        shown = self.url.set(drivername="postgresql").difference_update_query(["password", "sslpassword"])
        self.description = str(Path(str(self.url.database)).absolute() if self.is_sqlite else shown)
        try:
            self._engine = create_engine(
                self.url.difference_update_query([_FILE_PARAMETER]),
                pool_size=_POOL_SIZE,
                max_overflow=0,
                pool_timeout=LOCK_SECONDS,
                pool_pre_ping=not self.is_sqlite,
                hide_parameters=True,  # errors are logged
                connect_args=_SQLITE_ARGUMENTS if self.is_sqlite else _timeouts(self.url),
                execution_options={_BEGIN: "BEGIN"},
            )
        except ModuleNotFoundError as error:
            raise StartupError("PostgreSQL needs its driver: pip install 'comln-serve[postgres]'") from error
        # SQLite has one writer at a time: waiting here, in order, no thread of this server starves at the file's lock.
        # In PostgreSQL, writers that wait for a lock leave connections to readers.
        writers = 1 if self.is_sqlite else max(1, _POOL_SIZE // 2)
        self._writers = Places(writers)
        self._readers = Places(_SQLITE_READERS if self.is_sqlite else max(1, _POOL_SIZE - writers))
        self._closed = False
        # Views of one pool that differ in how a transaction begins.
        self._writes = self._engine.execution_options(**{_BEGIN: _BEGIN_WRITING})
        self._single_reads = self._engine.execution_options(
            **({_BEGIN: None} if self.is_sqlite else {"isolation_level": "AUTOCOMMIT"})
        )
        self._file: OpenedFile | None = None
        if self.is_sqlite:
            self._file = file = OpenedFile(str(self.url.database))
            event.listen(self._engine, "connect", _configure_sqlite)
            event.listen(self._engine, "connect", lambda *_: file.opened())
            event.listen(self._engine, "begin", _begin_sqlite)
        else:
            from comln_serve.storage.postgresql import Connecting  # noqa: PLC0415 - optional

            event.listen(self._engine, "do_connect", Connecting(_password_file(self.url)))
            event.listen(self._engine, "connect", _configure_postgresql)

    @contextmanager
    def single_read(self, tenant: str | None = None) -> Generator[Connection, None, None]:
        """A connection without a transaction, for one reading statement: a transaction would be most of its cost.

        Args:
            tenant: whose turn it is to read, or to write, here and below; None: it is the server's own.
        """
        with self._translated_errors(), self._turn(self._readers, tenant), self._single_reads.connect() as connection:
            yield connection

    @contextmanager
    def reading(self, tenant: str | None = None) -> Generator[Connection, None, None]:
        """A reading transaction."""
        with self._translated_errors(), self._turn(self._readers, tenant), self.connection() as connection:
            yield connection

    @contextmanager
    def writing(self, tenant: str | None = None) -> Generator[Connection, None, None]:
        """A transaction that is committed and flushed at the end of the block."""
        turn = self._turn(self._writers, tenant)
        with self._translated_errors(), turn, self.connection(writes=True) as connection:
            yield connection
            try:
                connection.commit()
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                raise _unavailable(self._reason(error), _NOT_KNOWN) from error
        if self._file is not None and (wrong := self._file.fault()) is not None:
            raise _unavailable(wrong, _NOT_KNOWN)

    @contextmanager
    def connection(self, *, writes: bool = False) -> Generator[Connection, None, None]:
        """A connection in a transaction that is rolled back unless committed. Raises the driver's errors."""
        with (self._writes if writes else self._engine).connect() as connection:
            connection.begin()
            yield connection

    def overwrite_deleted(self) -> None:
        """Have SQLite overwrite now, in its files, what has been deleted, unless others are reading.

        It happens later else: when the write-ahead log is long enough, or the last server closes the file.
        """
        if self.is_sqlite:
            with self.single_read() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close all connections, those in use as soon as they are given back; later calls fail."""
        self._closed = True
        self._engine.pool.dispose()

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The exceptions that an unusable database raises."""
        return (DBAPIError, PoolTimeout, self._engine.dialect.loaded_dbapi.Error)

    def may_come_back(self, error: Exception) -> bool:
        """Whether an error at opening may be over later, and is none of the configuration."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        if self.is_sqlite:
            return _is_busy(cause)
        state = getattr(cause, "sqlstate", None)
        # None: there is no connection, whether the server is away, is starting or lets nobody in, as psycopg does not
        # tell these apart. 08: it broke; 40, 55: others hold locks; 53: the server has no room; 57: it is stopping.
        return state is None or state[:2] in ("08", "40", "53", "55", "57")

    @contextmanager
    def _turn(self, places: Places, tenant: str | None) -> Generator[None, None, None]:
        """Wait for a place among those who write or read, at most as long as for a lock of the database."""
        if not places.take(tenant, LOCK_SECONDS):
            doing = "writing to" if places is self._writers else "reading"
            raise _unavailable(f"others have been {doing} it for {LOCK_SECONDS:g} s")
        try:
            yield
        finally:
            places.give_back()
            if self._closed:  # the pool has a connection again, which was in use when the others were closed
                self._engine.pool.dispose()

    @contextmanager
    def _translated_errors(self) -> Generator[None, None, None]:
        if self._closed:
            raise _unavailable("it is closed")
        if self._file is not None and (wrong := self._file.fault()) is not None:
            raise _unavailable(wrong)
        try:
            yield
        except self.errors as error:
            logger.warning("the database cannot be used: %s", error)
            raise _unavailable(self._reason(error)) from error

    def _reason(self, error: Exception) -> str:
        """The database's message, without the address and user that the driver's message has."""
        cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
        if self.is_sqlite:
            return str(cause)
        told = getattr(getattr(cause, "diag", None), "message_primary", None)
        return told or "it cannot be reached"


def parse_url(url: str) -> URL:
    """Convert `sqlite:///FILE` or `postgresql://...` to SQLAlchemy's URL.

    Raises:
        StartupError: the URL is neither.
    """
    if url.startswith(_SQLITE) and url.removeprefix(_SQLITE) not in {"", ":memory:"}:
        return URL.create("sqlite", database=url.removeprefix(_SQLITE))
    if url.startswith(_POSTGRESQL):
        with suppress(ArgumentError, ValueError):
            parsed = make_url(url).set(drivername="postgresql+psycopg")
            if "@" in f"{parsed.host}{parsed.database}":  # they hold the end of a password, and would be shown
                raise StartupError(
                    "the database URL has more than one '@'; in a user's name or password write %40 for '@', %2F for "
                    "'/' and %25 for '%'"
                )
            return parsed
    scheme = url.partition("://")[0].partition("+")[0]  # all that is shown: the rest may hold a password
    raise StartupError(
        f"database URL must read {_SQLITE}FILE or {_POSTGRESQL}USER:PASSWORD@HOST:PORT/DATABASE, "
        f"got one that begins with {scheme[:20]!r}"
    )


def sqlite_file(url: str) -> Path | None:
    """The absolute path of an SQLite database; None for PostgreSQL.

    Raises:
        StartupError: the URL is neither.
    """
    parsed = parse_url(url)
    return Path(str(parsed.database)).absolute() if parsed.drivername == "sqlite" else None


def _password_file(url: URL) -> Path | None:
    """The file of `?password_file=`, if the URL has one."""
    given = url.query.get(_FILE_PARAMETER)
    if given is None:
        return None
    if not isinstance(given, str) or not given or url.password is not None or "password" in url.query:
        raise StartupError(f"the database URL must have one {_FILE_PARAMETER}, and no other password beside it")
    return Path(given)


_SQLITE_ARGUMENTS = {"timeout": LOCK_SECONDS, "check_same_thread": False}


def _timeouts(url: URL) -> dict[str, Any]:
    """Connection arguments that limit how long PostgreSQL may be silent. The URL's own win."""
    defaults = {
        "connect_timeout": _CONNECT_SECONDS,
        "tcp_user_timeout": _SILENCE_MILLISECONDS,
        # Keepalives notice a machine that vanishes mid-answer.
        "keepalives_idle": _SILENCE_MILLISECONDS // 1000,
        "keepalives_interval": 1,
        "application_name": "comln-serve",
    }
    return {name: value for name, value in defaults.items() if name not in url.query}


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # _begin_sqlite begins transactions
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten with zeros


def _configure_postgresql(connection: Any, _record: Any) -> None:
    # Not among the connection's options, which poolers in front of the database refuse.
    connection.execute(f"SET lock_timeout = '{int(LOCK_SECONDS * 1000)}ms'")
    connection.commit()


def _begin_sqlite(connection: Connection) -> None:
    begin = connection.get_execution_options()[_BEGIN]
    if begin == _BEGIN_WRITING:
        _lock_sqlite(connection.connection.driver_connection)
    elif begin is not None:
        connection.exec_driver_sql(begin)


def _lock_sqlite(driver: Any) -> None:
    """Begin to write. SQLite itself would look every tenth of a second whether the file is free. While another process
    writes without pause, it is free for less than a millisecond at a time.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    driver.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                driver.execute(_BEGIN_WRITING)
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_SECONDS)
            else:
                return
    finally:
        driver.execute(f"PRAGMA busy_timeout = {int(1000 * LOCK_SECONDS)}")


def _is_busy(error: BaseException | None) -> bool:
    # Of SQLite's codes the last byte tells the kind.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _unavailable(why: str, outcome: str = "Nothing was changed; try again later.") -> ServiceError:
    return ServiceError(
        ErrorCode.STORAGE_UNAVAILABLE, f"The store of classifiers cannot be used right now ({why}). {outcome}"
    )
