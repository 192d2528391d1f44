"""Opening a database: migrations, servers that start together, and refusing another program's."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import delete, inspect, text
from sqlalchemy.exc import DBAPIError

from comln_serve.domain.classifier import HeldOutInfo
from comln_serve.errors import NotYetError, StartupError
from comln_serve.storage import IdempotencyKey, Store, database, schema
from comln_serve.storage import postgresql as comln_postgresql
from comln_serve.storage.database import Database
from comln_serve.storage.schema import MIGRATIONS, NEWEST, VERSION_TABLE, prepare
from comln_serve.storage.tables import classifiers, metadata
from tests.support.classifiers import add, support
from tests.support.databases import execute, insert_classifier, insert_row, migrate_to
from tests.support.waiting import SOON, at_once, wait_until

MakeUrl = Callable[[str], str]

SUPPORT = {"labels": "[]", "next_number": 8, "embeddings": b""}  # as earlier servers left it


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "classifiers.db"


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
