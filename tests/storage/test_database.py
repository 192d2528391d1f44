"""Connections to a database, and errors while it cannot be used."""

import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from sqlalchemy import text

from comln_serve.errors import ErrorCode, NotYetError, ServiceError
from comln_serve.storage import Store, database
from comln_serve.storage import postgresql as comln_postgresql
from comln_serve.storage.database import Database
from tests.support.classifiers import add, classifier, same, support
from tests.support.databases import administer, execute
from tests.support.engines import fails
from tests.support.relay import Relay

MakeUrl = Callable[[str], str]


def unavailable(action: Callable[[], object]) -> str:
    with pytest.raises(ServiceError) as caught:
        action()
    assert caught.value.code is ErrorCode.STORAGE_UNAVAILABLE
    return caught.value.message


def every_method(store: Store) -> list[Callable[[], object]]:
    mine = store.for_tenant("", show_thumbnails=True)
    return [
        lambda: add(mine, "clf_new"),
        lambda: mine.replace(classifier("clf_a", revision=2), support()),
        lambda: mine.resolve("clf_a"),
        lambda: mine.find("clf_a"),
        lambda: mine.describe("clf_a"),
        lambda: mine.support("clf_a"),
        lambda: mine.thumbnail("clf_a", 1),
        lambda: mine.page(limit=10),
        lambda: mine.promote("cats"),
        lambda: mine.roll_back("cats"),
        lambda: mine.delete("clf_a"),
        store.count,
        store.purge,
        store.delete_thumbnails,
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "classifiers.db"


def test_closed_store_is_unavailable(database_url: str) -> None:
    store = Store(database_url)
    store.close()
    for action in every_method(store):
        assert "closed" in unavailable(action)


@pytest.mark.parametrize("use", ["single_read", "reading", "writing"])
def test_a_connection_in_use_is_closed_after_the_others(database_url: str, use: str) -> None:
    opened = Database(database_url)
    with getattr(opened, use)() as connection:
        driver = connection.connection.driver_connection
        opened.close()
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    with pytest.raises(opened.errors, match="closed"):
        driver.execute("SELECT 1")


def test_a_connection_opened_while_the_store_closes_is_closed_after_use(database_url: str) -> None:
    """As by a thread that waits for its turn to write, or has it and does not have a connection yet."""
    opened = Database(database_url)
    with opened._turn(opened._readers, None):
        opened.close()
        with opened.connection() as connection:
            driver: Any = connection.connection.driver_connection
    with pytest.raises(opened.errors, match="closed"):
        driver.execute("SELECT 1")


@pytest.mark.postgresql
def test_dropped_tables_are_unavailable(make_url: MakeUrl) -> None:
    for kind, says in {"sqlite": "no such table", "postgresql": "does not exist"}.items():
        url = make_url(kind)
        with closing(Store(url)) as store:
            for table in ("thumbnails", "supports", "classifiers", "names"):
                execute(url, f"DROP TABLE {table}")
            for action in every_method(store):
                assert says in unavailable(action)


def test_locked_file_is_unavailable_to_writers_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.02)
    with closing(Store(f"sqlite:///{path}")) as impatient:
        mine = impatient.for_tenant("")
        add(mine, "clf_a")
        with closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert "locked" in unavailable(lambda: add(mine, "clf_b"))
            assert "locked" in unavailable(lambda: mine.delete("clf_a"))
            assert impatient.count() == 1
            other.execute("ROLLBACK")
        add(mine, "clf_b")
        assert impatient.count() == 2


def test_a_process_that_writes_without_pause_leaves_others_their_turns(path: Path) -> None:
    """The file is free for a moment only, each time after a writer here has waited for a while."""
    turns, rounds = 0, 12
    with (
        closing(Store(f"sqlite:///{path}")) as store,
        ThreadPoolExecutor(1) as thread,
        closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as other,
    ):
        for number in range(rounds):
            other.execute("BEGIN IMMEDIATE")
            adding = thread.submit(add, store.for_tenant(""), f"clf_{number}")
            time.sleep(0.4)
            other.execute("COMMIT")
            time.sleep(0.02)
            other.execute("BEGIN IMMEDIATE")
            turns += adding.done()
            other.execute("COMMIT")
            adding.result()
    assert turns >= 5  # of 12; SQLite's own wait meets few of these moments


def test_writers_wait_for_each_other_for_a_bounded_time(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_POOL_SIZE", 2)  # of which PostgreSQL's writers get one
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.1)
    with closing(Store(database_url)) as store:
        mine = store.for_tenant("")
        add(mine, "clf_a")
        with store._database.writing():
            assert "others have been writing to it for 0.1 s" in unavailable(lambda: mine.delete("clf_a"))
            assert store.count() == 1
        assert mine.delete("clf_a")


def test_a_full_disk_is_unavailable_to_writers_only(path: Path) -> None:
    """SQLite's own limit on pages gives the error of a disk without room; on every connection."""
    with closing(Store(f"sqlite:///{path}")) as full:
        mine = full.for_tenant("")
        made = add(mine, "clf_a")
        with full._database.connection() as connection:  # the only one there is so far
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")
        large = np.zeros((6, 20_000), np.float32)
        before = full.count()
        assert "full" in unavailable(lambda: add(mine, "clf_b", "cats", W=large))
        assert full.count() == before
        fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: mine.find("cats"))
        assert same(mine.find("clf_a"), made)
        with full._database.connection() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
        assert add(mine, "clf_b", "cats", W=large).version == 1


@pytest.mark.postgresql
def test_lost_connections_are_made_anew(postgresql: str, make_url: MakeUrl) -> None:
    """As after a restart of the database."""
    with closing(Store(make_url("postgresql"))) as store:
        mine = store.for_tenant("")
        made = add(mine, "clf_a")
        name = postgresql.rpartition("/")[2]
        administer(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE datname = '{name}' AND pid <> pg_backend_pid()"
        )
        assert same(mine.find("clf_a"), made)
        add(mine, "clf_b")
        assert store.count() == 2


@pytest.mark.postgresql
def test_a_database_that_was_away_is_used_again(make_url: MakeUrl) -> None:
    relay = Relay()
    url = make_url("postgresql").replace(":5432", f":{relay.port}")
    with closing(Store(url)) as store:
        mine = store.for_tenant("")
        made = add(mine, "clf_a")
        relay.cut()
        for action in every_method(store):
            message = unavailable(action)
            assert "cannot be reached" in message
            assert "127.0.0.1" not in message
        relay.open()
        assert same(mine.find("clf_a"), made)
        add(mine, "clf_b")
        assert store.count() == 2
    relay.cut()


@pytest.mark.postgresql
def test_a_commit_that_nobody_confirms_is_not_called_undone(
    postgresql: str, make_url: MakeUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Store(make_url("postgresql"))) as store:
        mine = store.for_tenant("")
        assert store.count() == 0  # there is a connection now: making one takes a commit, too
        commit = psycopg.Connection.commit

        def cut(connection: "psycopg.Connection[tuple[object, ...]]") -> None:
            commit(connection)
            connection.close()
            raise psycopg.OperationalError("the connection is lost")

        with monkeypatch.context() as patch:
            patch.setattr(psycopg.Connection, "commit", cut)
            assert "is not known" in unavailable(lambda: add(mine, "clf_a"))
        assert mine.find("clf_a")


def test_a_file_that_another_program_keeps_locked_may_be_free_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(database._SQLITE_ARGUMENTS, "timeout", 0.01)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(NotYetError, match="is locked"):
            Store(f"sqlite:///{path}")


@pytest.mark.postgresql
def test_who_waits_for_a_server_that_did_not_answer_is_told_at_once(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = list[object]()

    def silent(*arguments: object, **_parameters: object) -> None:
        tries.append(arguments)
        raise psycopg.errors.ConnectionTimeout("connection timeout expired")

    monkeypatch.setattr(comln_postgresql, "_PAUSE_SECONDS", 0.5)
    with closing(Database(postgresql)) as opened:

        def read() -> None:
            with opened.reading() as connection:
                connection.execute(text("SELECT 1"))

        with monkeypatch.context() as patch:
            patch.setattr(comln_postgresql.TimedConnection, "connect", silent)
            for _ in range(3):
                assert "it cannot be reached" in unavailable(read)
            assert len(tries) == 1
        time.sleep(0.5)
        read()


def test_which_errors_may_be_over_later(path: Path) -> None:
    recovering = sqlite3.OperationalError("database is locked")
    recovering.sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY
    with closing(Database(f"sqlite:///{path}")) as opened:
        assert opened.may_come_back(recovering)
        assert not opened.may_come_back(sqlite3.OperationalError("no such table"))
    with closing(Database("postgresql://me@host/db")) as opened:
        for error in (psycopg.errors.LockNotAvailable(), psycopg.errors.DeadlockDetected(), psycopg.OperationalError()):
            assert opened.may_come_back(error)
        for error in (psycopg.errors.InsufficientPrivilege(), psycopg.errors.InvalidCatalogName()):
            assert not opened.may_come_back(error)
