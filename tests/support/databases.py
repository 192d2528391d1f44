"""Databases for tests: SQLite in a file, and a PostgreSQL where one runs on this machine.

A test that takes `database_url` runs on both, each time on an empty database.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from comln_serve.storage import Store
from comln_serve.storage.database import Database
from comln_serve.storage.schema import migrate

SERVER = "postgresql://127.0.0.1:5432"


def administer(*statements: str, database: str = "postgres") -> None:
    """Run statements outside of any transaction."""
    url = f"{SERVER}/{database}"
    with closing(psycopg.connect(url, autocommit=True, connect_timeout=3)) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """A PostgreSQL database of this session's own; its URL."""
    name = f"comln_test_{uuid.uuid4().hex[:12]}"
    try:
        administer(f"CREATE DATABASE {name}")
    except psycopg.OperationalError as error:
        pytest.skip(f"no PostgreSQL at {SERVER}: {error}")
    yield f"{SERVER}/{name}"
    administer(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def make_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """URLs of empty databases, by kind."""

    def make(kind: str) -> str:
        unique = uuid.uuid4().hex[:12]
        if kind == "sqlite":
            return f"sqlite:///{tmp_path / f'{unique}.db'}"
        url: str = request.getfixturevalue("postgresql")
        administer(f"CREATE SCHEMA s{unique}", database=url.rpartition("/")[2])
        return f"{url}?options=-csearch_path%3Ds{unique}"

    return make


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def database_url(request: pytest.FixtureRequest, make_url: Callable[[str], str]) -> str:
    """The URL of an empty database of either kind."""
    return make_url(request.param)


def execute(url: str, statement: str, **parameters: object) -> list[tuple[Any, ...]]:
    """What another program gets for a statement; it is committed."""
    from sqlalchemy import create_engine, text  # noqa: PLC0415 - not needed by whole sessions

    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with engine.begin() as connection:
            result = connection.execute(text(statement), parameters)
            return [tuple(row) for row in result] if result.returns_rows else []
    finally:
        engine.dispose()


def statements_of(store: Store, call: Callable[[], object]) -> list[tuple[str, Any]]:
    """The statements that a call sends to the database, each with its parameters."""
    from sqlalchemy import event  # noqa: PLC0415 - not needed by whole sessions

    sent: list[tuple[str, Any]] = []

    def note(_c: object, _cursor: object, statement: str, parameters: Any, _context: object, _many: bool) -> None:
        sent.append((statement, parameters))

    engine = store._database._engine
    event.listen(engine, "before_cursor_execute", note)
    call()
    event.remove(engine, "before_cursor_execute", note)
    return sent


def migrate_to(url: str, revision: str) -> None:
    """Bring an empty database to a revision of the schema, as an earlier server left it."""
    database = Database(url)
    with database.connection(writes=True) as connection:
        migrate(connection, revision)
        connection.commit()
    database.close()


def insert_row(url: str, table: str, **values: object) -> None:
    """Insert a row as an earlier server left it."""
    execute(url, f"INSERT INTO {table} ({', '.join(values)}) VALUES (:{', :'.join(values)})", **values)


def insert_classifier(url: str, number: int, **more: object) -> None:
    """Insert a classifier, clf_<number>, as an earlier server left it; `more` has what changes between releases."""
    values: dict[str, object] = {
        "sequence": number,
        "tenant": "",
        "position": number,
        "id": f"clf_{number}",
        "promotion": 1,
        "revision": 1,
        "model": "m",
        "embedder_sha256": "",
        "labels": "[]",
        "examples": "[]",
        "horizon": 1,
        "support_loss": 0,
        "support_accuracy": 1,
        "metadata": "{}",
        "created_at": "2026-01-01 00:00:00",
        "weights": b"",
    }
    insert_row(url, "classifiers", **{**values, **more})
