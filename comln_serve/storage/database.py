"""A connection to SQLite or PostgreSQL: URLs, transactions, and what is said when they fail."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from comln_serve.errors import ErrorCode, ServiceError, StartupError
from comln_serve.storage.opened_file import OpenedFile

logger = logging.getLogger(__name__)

_SQLITE, _POSTGRESQL = "sqlite:///", "postgresql://"
_BEGIN = "comln_begin"

LOCK_SECONDS = 5.0
_NOT_KNOWN = (
    "Whether the change was made is not known: look, or repeat it with the same Idempotency-Key."
)
_CONNECT_SECONDS = 3
_SILENCE_MILLISECONDS = 10_000
_POOL_SIZE = 16


class Database:
    """Transactions on one database. Safe from many threads, and from many servers.

    SQLite writes ahead and flushes at every commit. Whoever writes says so at the beginning
    (BEGIN IMMEDIATE): a transaction that reads first and then finds the file locked could only
    start over.
    """

    def __init__(self, url: str) -> None:
        """Prepare; nothing is connected to yet.

        Raises:
            StartupError: a URL of another kind, or PostgreSQL without its driver.
        """
        self.url = parse_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.description = str(self.url.database if self.is_sqlite else self.url)
        try:
            self._engine = create_engine(
                self.url,
                pool_size=_POOL_SIZE,
                max_overflow=0,
                pool_timeout=LOCK_SECONDS,
                pool_pre_ping=not self.is_sqlite,
                hide_parameters=True,  # errors go to logs
                connect_args=_SQLITE_ARGUMENTS if self.is_sqlite else _patience(self.url),
                execution_options={_BEGIN: "BEGIN"},
            )
        except ModuleNotFoundError as error:
            raise StartupError(
                "PostgreSQL needs its driver: pip install 'comln-serve[postgres]'"
            ) from error
        # SQLite has one writer at a time: of one server's none is starved while others take turns
        # at the file's lock. In PostgreSQL those that wait for a lock leave connections to readers.
        self._writers = BoundedSemaphore(1 if self.is_sqlite else max(1, _POOL_SIZE // 2))
        self._closed = False
        # Views of one pool, by what their transactions begin with.
        self._reads = self._engine
        self._writes = self._engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})
        self._glances = self._engine.execution_options(
            **({_BEGIN: None} if self.is_sqlite else {"isolation_level": "AUTOCOMMIT"})
        )
        self._file: OpenedFile | None = None
        if self.is_sqlite:
            self._file = file = OpenedFile(str(self.url.database))
            event.listen(self._engine, "connect", _configure_sqlite)
            event.listen(self._engine, "connect", lambda *_: file.opened())
            event.listen(self._engine, "begin", _begin_sqlite)
        else:
            from comln_serve.storage.postgresql import connect  # noqa: PLC0415 - optional

            event.listen(self._engine, "do_connect", connect)
            event.listen(self._engine, "connect", _configure_postgresql)

    @contextmanager
    def glancing(self) -> Generator[Connection, None, None]:
        """For one statement that reads: a transaction of its own would be most of its cost.

        Raises:
            ServiceError: STORAGE_UNAVAILABLE.
        """
        with self._explained(), self._glances.connect() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Generator[Connection, None, None]:
        """A transaction that changes nothing.

        Raises:
            ServiceError: STORAGE_UNAVAILABLE.
        """
        with self._explained(), self.connection() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Generator[Connection, None, None]:
        """A transaction that is committed, and flushed, at the end of the block.

        Raises:
            ServiceError: STORAGE_UNAVAILABLE.
        """
        with self._explained(), self._turn(), self.connection(writes=True) as connection:
            yield connection
            try:
                connection.commit()
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                raise _unavailable(
                    self._why(error),
                    _NOT_KNOWN,
                ) from error
        if self._file is not None and (wrong := self._file.fault()) is not None:
            raise _unavailable(wrong, _NOT_KNOWN)

    @contextmanager
    def connection(
        self, *, writes: bool = False, patient: bool = False
    ) -> Generator[Connection, None, None]:
        """A connection in a transaction that is rolled back unless it is committed; errors are
        the driver's own.

        Args:
            patient: wait for answers of PostgreSQL for as long as they take.
        """
        with (self._writes if writes else self._reads).connect() as connection:
            connection.begin()
            driver: Any = connection.connection.dbapi_connection
            if not self.is_sqlite:
                driver.patient = patient
            try:
                yield connection
            finally:
                if not self.is_sqlite:
                    driver.patient = False

    def close(self) -> None:
        """Close all connections; later calls fail."""
        self._closed = True
        self._engine.dispose()

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What a database that cannot be used raises."""
        return (DBAPIError, PoolTimeout, self._engine.dialect.loaded_dbapi.Error)

    @contextmanager
    def _turn(self) -> Generator[None, None, None]:
        """Wait to be one of the writers, as long as for a lock of the database's own."""
        if not self._writers.acquire(timeout=LOCK_SECONDS):
            raise _unavailable(f"others have been writing to it for {LOCK_SECONDS:g} s")
        try:
            yield
        finally:
            self._writers.release()

    @contextmanager
    def _explained(self) -> Generator[None, None, None]:
        if self._closed:
            raise _unavailable("it is closed")
        if self._file is not None and (wrong := self._file.fault()) is not None:
            raise _unavailable(wrong)
        try:
            yield
        except self.errors as error:
            logger.warning("the database cannot be used: %s", error)
            raise _unavailable(self._why(error)) from error

    def _why(self, error: Exception) -> str:
        """The reason in the database's words, without the address and user that a driver tells."""
        cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
        if self.is_sqlite:
            return str(cause)
        told = getattr(getattr(cause, "diag", None), "message_primary", None)
        return told or "it cannot be reached"


def parse_url(url: str) -> URL:
    """`sqlite:///FILE` or `postgresql://...` as SQLAlchemy takes it.

    Raises:
        StartupError: it is neither.
    """
    if url.startswith(_SQLITE) and url.removeprefix(_SQLITE) not in {"", ":memory:"}:
        return URL.create("sqlite", database=url.removeprefix(_SQLITE))
    scheme = url.partition("://")[0].partition("+")[0]
    if url.startswith(_POSTGRESQL):
        try:
            return make_url(url).set(drivername="postgresql+psycopg")
        except (ArgumentError, ValueError):
            scheme = "postgresql"
    # What follows the scheme may hold a password.
    raise StartupError(
        f"database URL must read {_SQLITE}FILE or {_POSTGRESQL}USER:PASSWORD@HOST:PORT/DATABASE, "
        f"got one that begins with {scheme[:20]!r}"
    )


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite database, as an absolute path; None for a database of another kind.

    Raises:
        StartupError: a URL of neither kind.
    """
    parsed = parse_url(url)
    return Path(str(parsed.database)).absolute() if parsed.drivername == "sqlite" else None


_SQLITE_ARGUMENTS = {"timeout": LOCK_SECONDS, "check_same_thread": False}


def _patience(url: URL) -> dict[str, Any]:
    """How long PostgreSQL may be silent; what the URL says itself wins."""
    defaults = {
        "connect_timeout": _CONNECT_SECONDS,
        "tcp_user_timeout": _SILENCE_MILLISECONDS,
        "keepalives_idle": _SILENCE_MILLISECONDS // 1000,  # of a machine that is gone, mid-answer
        "keepalives_interval": 1,
        "application_name": "comln-serve",
    }
    return {name: value for name, value in defaults.items() if name not in url.query}


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin where _begin_sqlite says so
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _configure_postgresql(connection: Any, _record: Any) -> None:
    # Not in the connection's options: poolers between us and the database refuse these.
    connection.execute(f"SET lock_timeout = '{int(LOCK_SECONDS * 1000)}ms'")
    connection.commit()


def _begin_sqlite(connection: Connection) -> None:
    begin = connection.get_execution_options()[_BEGIN]
    if begin is not None:
        connection.exec_driver_sql(begin)


def _unavailable(why: str, outcome: str = "Nothing was changed; try again later.") -> ServiceError:
    return ServiceError(
        ErrorCode.STORAGE_UNAVAILABLE,
        f"The store of classifiers cannot be used right now ({why}). {outcome}",
    )
