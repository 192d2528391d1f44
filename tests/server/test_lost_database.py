"""The database goes away while requests come: they are told so, and all is well once it is back."""

import shutil
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import httpx2
import psycopg
import pytest

from comln_serve.configuration.settings import Settings
from comln_serve.engine.classifiers.catalogue import References
from comln_serve.errors import ErrorCode
from comln_serve.storage import database, postgresql
from tests.support import http
from tests.support.databases import administer
from tests.support.engines import MakeEngine
from tests.support.image_files import image_bytes
from tests.support.messages import adapt_form, adapt_json, check_error, predict_form
from tests.support.relay import Relay
from tests.support.serving import served
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

MakeUrl = Callable[[str], str]
RED = image_bytes()


def requests(url: str) -> dict[str, Callable[[], httpx2.Response]]:
    """One of each kind that needs the store."""

    def send(method: str, path: str, **body: Any) -> Callable[[], httpx2.Response]:
        return lambda: http.request(method, url + path, **body)

    return {
        "adapt": send("POST", "/adapt", **adapt_form(name="new")),
        "adapt once": send("POST", "/adapt", headers={"Idempotency-Key": "lost"}, **adapt_json(name="known")),
        "predict": send("POST", "/predict", **predict_form(RED)),
        "list": send("GET", "/classifiers"),
        "show": send("GET", "/classifiers/known"),
        "examples": send("GET", "/classifiers/known/examples"),
        "add": send("POST", "/classifiers/known/examples", **adapt_form()),
        "remove": send("DELETE", "/classifiers/known/examples/1"),
        "promote": send("POST", "/classifiers/known@1/promote"),
        "roll back": send("POST", "/classifiers/known/rollback"),
        "delete": send("DELETE", "/classifiers/known@2"),
        "ready": send("GET", "/health/ready"),
    }


def check_unavailable(answer: httpx2.Response) -> str:
    error = check_error(answer, ErrorCode.STORAGE_UNAVAILABLE)
    assert int(answer.headers["retry-after"]) >= 1
    for secret in ("127.0.0.1", "5432", "root", "sqlite3", "psycopg"):
        assert secret not in error["message"]
    message: str = error["message"]
    return message


def check_alive(url: str) -> None:
    """What does not need the store goes on."""
    assert http.get(f"{url}/health/live").status_code == 200
    assert http.get(f"{url}/models").status_code == 200
    metrics = http.get(f"{url}/metrics")
    assert metrics.status_code == 200
    assert "\ncomln_classifiers " not in metrics.text


def check_well(url: str) -> None:
    """All kinds of requests succeed, and nothing is there that was refused."""
    assert http.get(f"{url}/health/ready").json()["classifiers"] == 2
    for name, send in requests(url).items():
        assert send().status_code in (200, 201, 204), name


def make_two(url: str) -> None:
    for _ in range(2):
        http.post(f"{url}/adapt", **adapt_form(name="known")).raise_for_status()


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions ask the database each time."""
    monkeypatch.setattr(References, "seconds", 0.0)


@pytest.fixture
def there(make_url: MakeUrl) -> str:
    return make_url("postgresql")


@pytest.fixture
def server(make_engine: MakeEngine, there: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Relay]]:
    """A server whose way to PostgreSQL can be cut, with two versions of `known`."""
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.5)
    relay = Relay()
    relayed = there.replace(":5432", f":{relay.port}")
    with served(make_engine(database_url=relayed)) as url:
        make_two(url)
        http.post(f"{url}/predict", **predict_form(RED)).raise_for_status()  # it is cached now
        yield url, relay
    relay.cut()


@contextmanager
def moved_away(file: Path) -> Generator[None, None, None]:
    """SQLite's file, and what belongs to it, under other names."""
    files = [path for path in (file, *file.parent.glob(f"{file.name}-*")) if path.exists()]
    for path in files:
        path.rename(path.with_name(f"away-{path.name}"))
    try:
        yield
    finally:
        for path in files:
            path.with_name(f"away-{path.name}").rename(path)


def test_a_server_recovers_when_its_sqlite_file_is_put_back(
    settings: Settings, make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is acknowledged that nobody would find again, and no other file is made."""
    file = Path(settings.database_url.removeprefix("sqlite:///"))
    with served(make_engine()) as url:
        make_two(url)
        with moved_away(file):
            for _ in range(2):
                for send in requests(url).values():
                    message = check_unavailable(send())
                    assert "its file is gone; it has to be put back" in message
                    assert str(file) not in message
            check_alive(url)
            assert not file.exists()
        check_well(url)
    told = [r.getMessage() for r in caplog.records if r.name.endswith("opened_file")]
    assert [line.partition(": ")[2].partition(";")[0] for line in told] == ["its file is gone", "its file is back"]
    assert str(file) in told[0]


def test_another_file_in_the_place_of_sqlite_s_is_not_used(
    settings: Settings, make_engine: MakeEngine, tmp_path: Path
) -> None:
    file = Path(settings.database_url.removeprefix("sqlite:///"))
    with served(make_engine()) as url:
        make_two(url)
        with moved_away(file):
            shutil.copy(tmp_path / f"away-{file.name}", file)
            before = file.read_bytes()
            for send in requests(url).values():
                assert "another file has taken the place" in check_unavailable(send())
            assert file.read_bytes() == before
            file.unlink()
        check_well(url)


def test_a_server_recovers_when_the_way_to_its_database_is_mended(server: tuple[str, Relay]) -> None:
    url, relay = server
    relay.cut()
    for _ in range(2):
        for send in requests(url).values():
            assert "cannot be reached" in check_unavailable(send())
        check_alive(url)
    relay.open()
    check_well(url)


def test_a_database_that_never_answers_is_503(server: tuple[str, Relay], monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is stopped, or behind a pooler that has lost it."""
    url, relay = server
    relay.passing.clear()
    sends = requests(url)
    with monkeypatch.context() as impatient:
        impatient.setattr(postgresql, "ANSWER_SECONDS", 0.5)
        with ThreadPoolExecutor(len(sends)) as pool:
            for answer in pool.map(lambda send: send(), sends.values()):
                check_unavailable(answer)
        check_alive(url)
    relay.passing.set()
    wait_until(lambda: http.get(f"{url}/health/ready").status_code == 200)
    check_well(url)


@contextmanager
def nobody_let_in(database: str) -> Generator[None, None, None]:
    administer(
        f"ALTER DATABASE {database} ALLOW_CONNECTIONS false",
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'",
    )
    try:
        yield
    finally:
        administer(f"ALTER DATABASE {database} ALLOW_CONNECTIONS true")


def test_the_database_ends_its_connections_and_lets_nobody_in(server: tuple[str, Relay], postgresql: str) -> None:
    url, _ = server
    with nobody_let_in(postgresql.rpartition("/")[2]):
        for send in requests(url).values():
            check_unavailable(send())
        check_alive(url)
    check_well(url)


def test_what_was_acknowledged_is_there_after_connections_end_under_load(
    server: tuple[str, Relay], postgresql: str
) -> None:
    """Again and again, in the middle of what is done; what was acknowledged is there."""
    url, _ = server
    name = postgresql.rpartition("/")[2]
    done = Event()
    made: list[str] = []

    def client(number: int) -> None:
        with http.session() as session:
            while not done.is_set():
                answer = session.post(f"{url}/adapt", **adapt_form(name=f"client-{number % 2}"))
                if answer.status_code == 201:
                    made.append(answer.json()["id"])
                else:
                    check_unavailable(answer)

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(client, number) for number in range(4)]
        try:
            for _ in range(8):
                before = len(made)
                administer(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    f"WHERE datname = '{name}' AND application_name = 'comln-serve'"
                )
                wait_until(lambda before=before: len(made) > before + 3)
        finally:
            done.set()
        for finished in clients:
            finished.result()
    for identifier in made:
        assert http.get(f"{url}/classifiers/{identifier}").status_code == 200


def test_waiting_for_a_name_that_another_server_locks_is_bounded(server: tuple[str, Relay], there: str) -> None:
    """It hangs within a transaction. Others wait for it as for SQLite's file: not for ever."""
    url, _ = server
    with psycopg.connect(there) as other:
        other.execute("SELECT * FROM names FOR UPDATE")
        sends = requests(url)
        with ThreadPoolExecutor(2) as pool:
            for answer in pool.map(lambda name: sends[name](), ("promote", "add")):
                assert "lock" in check_unavailable(answer)
        assert http.get(f"{url}/health/ready").status_code == 200
        assert sends["predict"]().status_code == 200
        other.rollback()
    check_well(url)
