"""Backing up, restoring and upgrading a live server's database, by the commands of docs/backup.md."""

import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from sqlite3 import connect
from threading import Event, Thread
from typing import Any

import httpx2
import pytest

from comln_serve.storage.schema import NEWEST
from tests.support.databases import SERVER, administer
from tests.support.documents import document
from tests.support.image_files import colour_support
from tests.support.live import LiveServer, live_server
from tests.support.messages import GREEN, RED, adapt_form, predict_form

pytestmark = pytest.mark.slow

NAMES = ("letters", "digits", "tools")
FILE = "comln-serve.db"
KEEPING = "--keep-thumbnails"
PYTHON_BACKUP = (
    "python3 -c \"import sqlite3 as s; s.connect('file:/data/comln-serve.db?mode=rw', uri=True)"
    ".backup(s.connect('/data/copy.db'))\""
)
COMMANDS = {
    "sqlite3": "sqlite3 'file:/data/comln-serve.db?mode=rw' \".backup /data/copy.db\"",
    "python3": PYTHON_BACKUP,
}
RESTORE = "mv /data/copy.db /data/comln-serve.db && rm -f /data/comln-serve.db-wal /data/comln-serve.db-shm"
PG_DUMP, PG_RESTORE = "pg_dump --format=custom --file=comln.dump", "pg_restore --exit-on-error --no-owner"


def documented(command: str) -> str:
    assert command in document("backup.md")
    return command


def call(command: str, folder: Path) -> tuple[int, str]:
    """Run a command of the documentation with this folder in the place of /data. Returns its status and errors."""
    command = documented(command).replace("/data", str(folder)).replace("python3 ", f"{sys.executable} ", 1)
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def run(command: str, folder: Path) -> None:
    assert call(command, folder) == (0, "")


def adapt(server: LiveServer, name: str, shots: int) -> None:
    answer = httpx2.post(f"{server.url}/adapt", **adapt_form(colour_support(shots), name=name), timeout=60)
    assert answer.status_code == 201, answer.text


def predictions(server: LiveServer) -> list[Any]:
    """The probabilities of two images under each classifier, as they are answered."""
    found: list[Any] = []
    for name in NAMES:
        answer = httpx2.post(f"{server.url}/predict", **predict_form(RED, GREEN, classifier=f"{name}@1"), timeout=60)
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["predictions"])
    return found


def thumbnails(server: LiveServer) -> list[bytes]:
    """The JPEG of the first class of each classifier."""
    answers = [httpx2.get(f"{server.url}/classifiers/{name}@1/examples/1/thumbnail") for name in NAMES]
    assert {answer.status_code for answer in answers} == {200}
    return [answer.content for answer in answers]


def make_classifiers(server: LiveServer) -> list[Any]:
    for shots, name in enumerate(NAMES, start=1):
        adapt(server, name, shots)
    return predictions(server)


@contextmanager
def writing(server: LiveServer) -> Generator[None, None, None]:
    """Adapt without pause while the block runs."""
    enough, begun = Event(), Event()

    def write() -> None:
        while not enough.is_set():
            adapt(server, NAMES[0], 1)
            begun.set()

    thread = Thread(target=write)
    thread.start()
    try:
        assert begun.wait(60)
        yield
    finally:
        enough.set()
        thread.join()


def kill(server: LiveServer) -> None:
    server.process.kill()
    server.process.wait()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_sqlite_database_is_copied_under_load_and_restored(command: str, models_dir: Path, tmp_path: Path) -> None:
    if shutil.which(command) is None:
        pytest.skip(f"{command} is not installed")
    url = f"sqlite:///{tmp_path / FILE}"
    with live_server(models_dir, tmp_path, KEEPING, database_url=url) as server:
        before, pictures = make_classifiers(server), thumbnails(server)
        with writing(server):
            run(COMMANDS[command], tmp_path)
        # What comes after the copy is lost, and so is nothing else.
        assert httpx2.delete(f"{server.url}/classifiers/{NAMES[2]}@1").status_code == 204
        kill(server)
    (tmp_path / FILE).write_bytes(b"a damaged disk")
    with closing(connect(tmp_path / "copy.db")) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    run(RESTORE, tmp_path)
    with live_server(models_dir, tmp_path, KEEPING, database_url=url) as server:
        assert (predictions(server), thumbnails(server)) == (before, pictures)
        adapt(server, "new", 1)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_database_that_is_not_there_is_not_copied(command: str, tmp_path: Path) -> None:
    if shutil.which(command) is None:
        pytest.skip(f"{command} is not installed")
    status, errors = call(COMMANDS[command], tmp_path)
    assert status == 1
    assert "unable to open database file" in errors
    assert not (tmp_path / FILE).exists()


def test_a_copy_that_is_not_there_costs_nothing(tmp_path: Path) -> None:
    """Recent classifiers may be in the write-ahead log only."""
    (tmp_path / f"{FILE}-wal").touch()
    status, _ = call(RESTORE, tmp_path)
    assert status == 1
    assert (tmp_path / f"{FILE}-wal").exists()


@pytest.fixture
def postgresql_database(postgresql: str) -> Iterator[Callable[[], str]]:
    """Makes empty databases of the PostgreSQL server; returns the URL."""
    made: list[str] = []

    def make() -> str:
        made.append(f"comln_test_{uuid.uuid4().hex[:12]}")
        administer(f"CREATE DATABASE {made[-1]}")
        return f"{SERVER}/{made[-1]}"

    yield make
    for name in made:
        administer(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_postgresql_database_is_dumped_under_load_and_restored(
    postgresql_database: Callable[[], str], models_dir: Path, tmp_path: Path
) -> None:
    if shutil.which("pg_dump") is None or shutil.which("pg_restore") is None:
        pytest.skip("pg_dump and pg_restore are not installed")
    url, other = postgresql_database(), postgresql_database()

    def run_here(command: str, *arguments: str) -> None:
        done = subprocess.run(
            [*documented(command).split(), *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")

    with live_server(models_dir, tmp_path, KEEPING, database_url=url) as server:
        before, pictures = make_classifiers(server), thumbnails(server)
        with writing(server):
            run_here(PG_DUMP, url)
        kill(server)
    run_here(PG_RESTORE, f"--dbname={other}", "comln.dump")
    with live_server(models_dir, tmp_path, KEEPING, database_url=other) as server:
        assert (predictions(server), thumbnails(server)) == (before, pictures)
        adapt(server, "new", 1)


def test_a_database_of_the_release_before_is_upgraded(models_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / FILE
    url = f"sqlite:///{file}"
    with live_server(models_dir, tmp_path, database_url=url) as server:
        before = make_classifiers(server)
    run(COMMANDS["python3"], tmp_path)
    # What migration 0012 did, undone.
    assert NEWEST == "0012", "undo the newest migration here"
    with closing(connect(file)) as database:
        database.execute("ALTER TABLE api_keys DROP COLUMN used_at")
        database.execute("UPDATE comln_schema SET version_num = '0011'")
        database.commit()
    with live_server(models_dir, tmp_path, database_url=url) as server:
        assert predictions(server) == before
        adapt(server, "new", 1)
    with closing(connect(file)) as upgraded:
        assert upgraded.execute("SELECT version_num FROM comln_schema").fetchall() == [(NEWEST,)]
