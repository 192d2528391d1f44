"""Classifiers in one SQLite file."""

import json
import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from comln_serve.classifier import Classifier, ClassifierInfo
from comln_serve.errors import ErrorCode, ServiceError, StartupError

SCHEMA_VERSION = 1

_SCHEMA = (
    """CREATE TABLE classifiers (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        name TEXT,
        model TEXT NOT NULL,
        embedder_sha256 TEXT NOT NULL,
        labels TEXT NOT NULL,
        examples TEXT NOT NULL,
        horizon REAL NOT NULL,
        support_loss REAL NOT NULL,
        support_accuracy REAL NOT NULL,
        created_at TEXT NOT NULL,
        report TEXT,
        weights BLOB NOT NULL
    )""",
    "CREATE INDEX classifiers_by_name ON classifiers (name, sequence)",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

_INFO = (
    "id, name, model, embedder_sha256, labels, examples, horizon, support_loss, "
    "support_accuracy, created_at, report"
)
_COLUMNS = f"{_INFO}, weights"

_LOCK_SECONDS = 5.0

_Result = TypeVar("_Result")


class SqliteStore:
    """A `ClassifierStore` in a file, with a write-ahead log flushed at every commit.

    One connection, one call at a time: a call takes tens of microseconds, a commit as long as the
    disk needs.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises:
            StartupError: it cannot be opened, is no database of this program, or of a later one.
        """
        self._lock = Lock()
        try:
            self._connection = _open(path)
        except sqlite3.Error as error:
            raise StartupError(
                f"cannot use {path} as the database of classifiers: {error}. Check that the folder "
                "exists and can be written to, or choose another --database-url"
            ) from error

    def add(self, classifier: Classifier) -> None:
        row = (
            classifier.id, classifier.name, classifier.model, classifier.embedder_sha256,
            json.dumps(classifier.labels), json.dumps(classifier.examples), classifier.horizon,
            classifier.support_loss, classifier.support_accuracy,
            classifier.created_at.astimezone(UTC).isoformat(),
            None if classifier.report is None else json.dumps(classifier.report),
            classifier.W.astype("<f4").tobytes(),
        )  # fmt: skip
        marks = ", ".join("?" * len(row))

        def insert(connection: sqlite3.Connection) -> None:
            with connection:
                connection.execute(f"INSERT INTO classifiers ({_COLUMNS}) VALUES ({marks})", row)

        self._call(insert)

    def resolve(self, id_or_name: str) -> str | None:
        row = self._find("id", id_or_name)
        return None if row is None else str(row[0])

    def find(self, id_or_name: str) -> Classifier | None:
        row = self._find(_COLUMNS, id_or_name)
        return None if row is None else _classifier(row)

    def page(self, *, limit: int, before: int | None) -> tuple[list[ClassifierInfo], int | None]:
        rows = self._call(
            lambda connection: connection.execute(
                f"SELECT {_INFO}, sequence FROM classifiers WHERE ?1 IS NULL OR sequence < ?1 "
                "ORDER BY sequence DESC LIMIT ?2",
                (before, limit + 1),
            ).fetchall()
        )
        page = [ClassifierInfo(**_info(row)) for row in rows[:limit]]
        return page, rows[limit - 1][-1] if len(rows) > limit else None

    def delete(self, classifier_id: str) -> bool:
        def remove(connection: sqlite3.Connection) -> bool:
            with connection:
                cursor = connection.execute(
                    "DELETE FROM classifiers WHERE id = ?", (classifier_id,)
                )
            return cursor.rowcount > 0

        return self._call(remove)

    def count(self) -> int:
        row = self._row("SELECT count(*) FROM classifiers", ())
        return 0 if row is None else int(row[0])

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _find(self, columns: str, id_or_name: str) -> tuple[Any, ...] | None:
        return self._row(
            f"SELECT {columns} FROM classifiers WHERE id = ?", (id_or_name,)
        ) or self._row(
            f"SELECT {columns} FROM classifiers WHERE name = ? ORDER BY sequence DESC LIMIT 1",
            (id_or_name,),
        )

    def _row(self, query: str, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return self._call(lambda connection: connection.execute(query, values).fetchone())

    def _call(self, action: Callable[[sqlite3.Connection], _Result]) -> _Result:
        try:
            with self._lock:
                return action(self._connection)
        except sqlite3.Error as error:
            raise ServiceError(
                ErrorCode.STORAGE_UNAVAILABLE,
                f"The store of classifiers cannot be used right now ({error}). Nothing was "
                "changed; try again later.",
            ) from error


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False, timeout=_LOCK_SECONDS)
    try:
        # Locked while it looks: of two servers that start together, one makes the tables.
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            _create_or_check(connection, path)
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging; while another server does the same SQLite does not wait."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _create_or_check(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    if version == 0 and not tables:
        for statement in _SCHEMA:
            connection.execute(statement)
    elif "classifiers" not in tables:
        raise StartupError(
            f"{path} is a database of another program; choose another --database-url"
        )
    elif version != SCHEMA_VERSION:
        raise StartupError(
            f"{path} has schema version {version}; this release knows {SCHEMA_VERSION}. Use the "
            "release that wrote it, or another --database-url"
        )


def _info(row: tuple[Any, ...]) -> dict[str, Any]:
    return {
        "id": row[0],
        "name": row[1],
        "model": row[2],
        "embedder_sha256": row[3],
        "labels": tuple(json.loads(row[4])),
        "examples": tuple(json.loads(row[5])),
        "horizon": row[6],
        "support_loss": row[7],
        "support_accuracy": row[8],
        "created_at": datetime.fromisoformat(row[9]),
        "report": None if row[10] is None else json.loads(row[10]),
    }


def _classifier(row: tuple[Any, ...]) -> Classifier:
    info = _info(row)
    W = np.frombuffer(row[11], dtype="<f4").reshape(len(info["labels"]), -1)
    return Classifier(**info, W=W)
