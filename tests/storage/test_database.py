"""Opening a database, refusing another program's, and errors while one cannot be used."""

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import delete, inspect, text
from sqlalchemy.exc import DBAPIError

from comln_serve.domain.classifier import HeldOutInfo
from comln_serve.errors import ErrorCode, NotYetError, ServiceError, StartupError
from comln_serve.storage import IdempotencyKey, Store, database, schema
from comln_serve.storage import postgresql as comln_postgresql
from comln_serve.storage.database import Database
from comln_serve.storage.schema import MIGRATIONS, NEWEST, VERSION_TABLE, prepare
from comln_serve.storage.tables import classifiers, metadata
from tests.support.classifiers import add, classifier, same, support
from tests.support.databases import administer, execute, insert_classifier, insert_row, migrate_to
from tests.support.engines import fails
from tests.support.relay import Relay
from tests.support.waiting import SOON, at_once, wait_until

MakeUrl = Callable[[str], str]

SUPPORT = {"labels": "[]", "next_number": 8, "embeddings": b""}  # as earlier servers left it


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


# --- Opening -------------------------------------------------------------------------------------


def test_the_tables_are_those_of_the_newest_migration(database_url: str) -> None:
    opened = Database(database_url)
    prepare(opened)
    with opened.connection() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, metadata) == []
    opened.close()
    assert execute(database_url, f"SELECT * FROM {VERSION_TABLE}") == [(NEWEST,)]


def test_reports_of_before_name_suspects_by_number(database_url: str) -> None:
    """Their positions were of the examples that were left."""
    migrate_to(database_url, "0002")
    suspect = {"label": "a", "likelier": "b", "score": 0.96}
    held_out = {"accuracy": 0.5, "judged": 4, "suspects": [{"example": 2, **suspect}, {"example": 0, **suspect}]}
    plain = {"held_out": None, "notes": ["example", '"example":']}
    for number, report in enumerate([{"held_out": held_out, "notes": []}, plain, None], 1):
        written = None if report is None else json.dumps(report)
        insert_classifier(database_url, number, horizon_given=False, report=written)
        insert_row(database_url, "supports", **SUPPORT, classifier=number, numbers="[2, 3, 7]")
    Store(database_url).close()
    told = [row[0] for row in execute(database_url, "SELECT report FROM classifiers")]
    found = [None if row is None else json.loads(row) for row in told]
    changed = {**held_out, "suspects": [{"number": 7, **suspect}, {"number": 2, **suspect}]}
    assert len(found) == 3
    for expected in ({"held_out": changed, "notes": []}, plain, None):
        assert expected in found


def test_horizons_of_before_are_given_or_learned(database_url: str) -> None:
    migrate_to(database_url, "0003")
    for number, given in enumerate((True, False), 1):
        insert_classifier(database_url, number, horizon_given=given)
    Store(database_url).close()
    found = execute(database_url, "SELECT id, horizon_rule FROM classifiers ORDER BY id")
    assert [tuple(row) for row in found] == [("clf_1", "given"), ("clf_2", "learned")]


def test_classifiers_of_before_have_no_hash_of_their_head(database_url: str) -> None:
    migrate_to(database_url, "0009")
    insert_classifier(database_url, 1, horizon_rule="learned")
    with closing(Store(database_url)) as store:
        assert store.for_tenant("").describe("clf_1").head_sha256 is None


def test_lists_have_the_accuracy_that_reports_of_before_have(database_url: str) -> None:
    migrate_to(database_url, "0010")
    held_out = {"accuracy": 0.75, "judged": 8, "suspects": [{"label": "nul\0"}]}
    for number, report in enumerate([{"held_out": held_out}, {"held_out": None}, None], 1):
        written = None if report is None else json.dumps(report)
        insert_classifier(database_url, number, horizon_rule="learned", report=written)
    with closing(Store(database_url)) as store:
        page, _ = store.for_tenant("").page(limit=9)
        assert {one.id: one.held_out for one in page} == {
            "clf_1": HeldOutInfo(accuracy=0.75, judged=8),
            "clf_2": None,
            "clf_3": None,
        }


def test_examples_of_before_have_no_hashes(database_url: str) -> None:
    migrate_to(database_url, "0006")
    insert_classifier(database_url, 9, horizon_rule="learned")
    insert_row(database_url, "supports", **SUPPORT, classifier=9, numbers="[]")
    with closing(Store(database_url)) as store:
        assert [tuple(row) for row in execute(database_url, "SELECT hashes FROM supports")] == [(None,)]
        mine = store.for_tenant("")
        add(mine, "clf_a")
        execute(database_url, "UPDATE supports SET hashes = NULL")
        assert mine.support("clf_a")[1].hashes == (None,) * len(support())


def test_idempotency_keys_of_before_are_still_known(database_url: str) -> None:
    """No request went on without an image then."""
    migrate_to(database_url, "0005")
    row = {"key": "k", "fingerprint": "print", "classifier": "clf_1", "expires_at": "2999-01-01 00:00:00"}
    insert_row(database_url, "idempotency_keys", tenant="", **row)
    with closing(Store(database_url)) as store:
        key = IdempotencyKey("k", "print", datetime(2999, 1, 1, tzinfo=UTC))
        assert store.for_tenant("").made_by(key) == ("clf_1", ())


def test_a_migration_is_logged(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """It may take a minute; that of a new database does not."""
    caplog.set_level("INFO", logger="comln_serve.storage.schema")
    migrate_to(database_url, "0010")
    Store(database_url).close()
    (line,) = caplog.messages
    assert f"from schema version 0010 to {NEWEST}" in line
    Store(database_url).close()
    assert len(caplog.messages) == 1


def test_a_new_database_is_not_migrated(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="comln_serve.storage.schema")
    Store(database_url).close()
    assert caplog.messages == []


def test_servers_of_0009_and_later_write_to_the_newest_tables(database_url: str) -> None:
    """While servers are replaced one after another, those of the release before go on: a column they do not know of is
    null. Of a migration that cannot keep to this, docs/upgrade.md has to say so.
    """
    tables = []
    for revision in ("0009", NEWEST):
        migrate_to(database_url, revision)
        opened = Database(database_url)
        with opened.connection() as connection:
            found = inspect(connection)
            tables.append({name: found.get_columns(name) for name in found.get_table_names()})
        opened.close()
    before, after = tables
    for name, columns in before.items():
        known = {column["name"] for column in columns}
        assert known <= {column["name"] for column in after[name]}
        for column in after[name]:
            assert column["name"] in known or column["nullable"] or column["default"] is not None


def test_the_newest_migration_is_known_without_alembic() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_heads() == [NEWEST]


@pytest.mark.process
def test_a_database_that_is_up_to_date_is_opened_without_alembic(database_url: str) -> None:
    Store(database_url).close()
    script = (
        "import sys\nfrom comln_serve.storage import Store\n"
        f"store = Store({database_url!r})\n"
        "print(store.count(), 'alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.split() == [b"0", b"False"]


def test_servers_that_start_together_share_a_new_database(database_url: str) -> None:
    def work(server: int) -> None:
        with closing(Store(database_url)) as store:
            add(store.for_tenant(""), f"clf_{server}")

    at_once(work, range(4))
    with closing(Store(database_url)) as store:
        assert store.count() == 4


@pytest.mark.process
def test_processes_that_start_together_share_a_new_database(database_url: str) -> None:
    script = f"from comln_serve.storage import Store; Store({database_url!r}).close()"
    servers = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(3)]
    assert [server.wait(timeout=60) for server in servers] == [0, 0, 0]


@pytest.mark.postgresql
def test_a_migration_may_take_longer_than_an_answer(make_url: MakeUrl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server does it, and takes its time."""
    url = make_url("postgresql")
    monkeypatch.setattr(comln_postgresql, "ANSWER_SECONDS", 0.2)
    with psycopg.connect(url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (schema._ADVISORY_LOCK,))
        opening = pool.submit(Store, url)
        with pytest.raises(TimeoutError):
            opening.result(timeout=1.0)
        other.rollback()
        with closing(opening.result(timeout=30)) as store:
            assert store.count() == 0
            # The connection is as impatient as any now.
            with store._database.connection() as connection, pytest.raises(DBAPIError):
                connection.execute(text("SELECT pg_sleep(1)"))


@pytest.fixture
def lock_held(path: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """Another process that keeps an old database locked, as one that migrates it, until its input ends."""
    migrate_to(f"sqlite:///{path}", "0011")
    script = (
        f"import sqlite3, sys\nfile = sqlite3.connect({str(path)!r}, isolation_level=None)\n"
        "file.execute('BEGIN IMMEDIATE')\nprint(flush=True)\nsys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield other


@pytest.mark.process
def test_a_migration_by_another_process_may_take_longer_than_a_write(
    path: Path, lock_held: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.02)
    monkeypatch.setattr(schema, "LOCK_SECONDS", 0.02)
    monkeypatch.setattr(schema, "WAIT_SECONDS", SOON)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(Store, f"sqlite:///{path}")
        wait_until(lambda: "locked by another process" in caplog.text)
        with pytest.raises(TimeoutError):
            opening.result(timeout=0.2)
        assert lock_held.stdin is not None
        lock_held.stdin.close()
        with closing(opening.result(timeout=SOON)) as store:
            assert store.count() == 0
    assert caplog.text.count("locked by another process") == 1


@pytest.mark.process
def test_a_lock_that_nobody_lets_go_of_ends_the_start(
    path: Path, lock_held: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.02)
    monkeypatch.setattr(schema, "WAIT_SECONDS", 0.05)
    with pytest.raises(NotYetError, match="is locked"):
        Store(f"sqlite:///{path}")
    assert lock_held.poll() is None


def test_readers_do_not_wait_for_a_migration(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor those of a copy without a write-ahead log, which its migration would lock for them, too."""
    migrate_to(f"sqlite:///{path}", "0011")

    def read(_migrating: object) -> None:
        with closing(sqlite3.connect(path)) as other:
            assert other.execute("PRAGMA journal_mode").fetchall() == [("wal",)]

    monkeypatch.setattr(schema, "migrate", read)
    with closing(Database(f"sqlite:///{path}")) as opened:
        prepare(opened)


def test_a_glance_leaves_nothing_behind_in_its_connection(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool has one: what is written on it next is a transaction."""
    monkeypatch.setattr(database, "_POOL_SIZE", 1)
    with closing(Store(database_url)) as store:
        mine = store.for_tenant("")
        add(mine, "clf_a")
        assert mine.resolve("clf_a") is not None

        def fails() -> None:
            with store._database.writing() as connection:
                connection.execute(delete(classifiers))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fails()
        assert mine.resolve("clf_a") is not None
        assert store.count() == 1


@pytest.mark.parametrize("version", [f"{int(NEWEST) + 1:04}", "0100", "9999"])
def test_database_of_a_later_release_is_refused(database_url: str, version: str) -> None:
    Store(database_url).close()
    execute(database_url, f"UPDATE {VERSION_TABLE} SET version_num = '{version}'")
    with pytest.raises(StartupError, match=f"version {version}; this release knows up to {NEWEST}"):
        Store(database_url)
    assert execute(database_url, f"SELECT * FROM {VERSION_TABLE}") == [(version,)]


def test_database_of_another_program_is_refused_and_kept(database_url: str) -> None:
    execute(database_url, "CREATE TABLE bookmarks (url TEXT)")
    with pytest.raises(StartupError, match="another program"):
        Store(database_url)
    execute(database_url, "INSERT INTO bookmarks VALUES ('x')")
    with pytest.raises(StartupError, match="another program"):
        Store(database_url)


def test_file_of_another_program_stays_as_it_is(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE bookmarks (url TEXT)")
    content = path.read_bytes()
    with pytest.raises(StartupError, match="another program"):
        Store(f"sqlite:///{path}")
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b"not a database at all, just text " * 40, b"\xff" * 4096])
def test_file_that_is_no_database_is_refused_and_kept(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StartupError, match=r"cannot use .* as the database"):
        Store(f"sqlite:///{path}")
    assert path.read_bytes() == content


def test_a_connection_flushes_at_every_commit(path: Path) -> None:
    with closing(Store(f"sqlite:///{path}")) as store:
        with store._database.connection() as connection:
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
            assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
        with closing(sqlite3.connect(path)) as other:
            assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)


# --- While it cannot be used ---------------------------------------------------------------------


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
