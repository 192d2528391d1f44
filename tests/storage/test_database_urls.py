"""Database URLs: what they may be, what is shown of them, and where the password is."""

from contextlib import closing
from pathlib import Path
from socket import socket
from typing import Any, NoReturn
from urllib.parse import quote

import psycopg
import pytest

from comln_serve.errors import ServiceError, StartupError
from comln_serve.storage import Store, database
from comln_serve.storage.database import Database, parse_url
from comln_serve.storage.postgresql import TimedConnection


@pytest.mark.parametrize(
    "url",
    [
        "postgres://host/db",
        "mysql://host/db",
        "sqlite:///",
        "sqlite://file.db",
        "x.db",
        "",
        "postgresql+asyncpg://host/db",
        "postgresql://user:secret@host:port/db",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(StartupError, match="must read sqlite:///FILE or postgresql://") as caught:
        Store(url)
    assert "secret" not in str(caught.value)


def test_urls_are_taken_as_they_are_written() -> None:
    assert parse_url("sqlite:////a b/x?y%20.db").database == "/a b/x?y%20.db"
    url = parse_url("postgresql://me:pass%40word@host:5433/name?sslmode=require")
    assert (url.drivername, url.password, url.query["sslmode"]) == ("postgresql+psycopg", "pass@word", "require")


def test_patience_can_be_changed_in_the_url() -> None:
    timeouts = database._timeouts(parse_url("postgresql://host/db?connect_timeout=60"))
    assert timeouts == {
        "tcp_user_timeout": 10_000,
        "keepalives_idle": 10,
        "keepalives_interval": 1,
        "application_name": "comln-serve",
    }


def test_missing_folder_and_folder_as_file(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="folder"):
        Store(f"sqlite:///{tmp_path / 'absent' / 'classifiers.db'}")
    with pytest.raises(StartupError, match="cannot use"):
        Store(f"sqlite:///{tmp_path}")


def test_postgresql_that_is_not_there() -> None:
    with socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        with pytest.raises(StartupError, match="Check that it is running") as caught:
            Store(f"postgresql://me:secret@127.0.0.1:{port}/name?password=hidden&sslpassword=hidden")
    assert f"me:***@127.0.0.1:{port}" in str(caught.value)
    assert "connections? Check that" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_the_file_is_shown_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(Store("sqlite:///a.db")) as store:
        assert store.description == str(tmp_path / "a.db")


@pytest.mark.parametrize("password", ["se@cret", "se@c/ret", "se@c:ret"])
def test_a_password_with_an_at_sign_is_not_taken_for_the_host(password: str) -> None:
    with pytest.raises(StartupError, match=r"write %40|must read") as caught:
        Store(f"postgresql://me:{password}@127.0.0.1:1/name")
    assert "ret" not in str(caught.value)
    assert parse_url(f"postgresql://me:{quote(password, safe='')}@127.0.0.1:1/name").password == password


def test_the_password_of_a_file_is_read_for_each_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be exchanged while the server runs. libpq is given the password, not the parameter."""
    given: list[dict[str, Any]] = []

    def refuse(*_arguments: Any, **parameters: Any) -> NoReturn:
        given.append(parameters)
        raise psycopg.OperationalError("enough")

    monkeypatch.setattr(TimedConnection, "connect", refuse)
    file = tmp_path / "password"
    opened = Database(f"postgresql://me@host/db?sslmode=require&password_file={file}")
    for content in ("first\n", "second"):
        file.write_text(content)
        with pytest.raises(ServiceError), opened.reading():
            pass
    assert [parameters["password"] for parameters in given] == ["first", "second"]
    assert all("password_file" not in parameters and parameters["sslmode"] == "require" for parameters in given)
    assert "password_file=" in opened.description


@pytest.mark.parametrize(("content", "problem"), [(None, "No such file"), ("\n", "is empty"), (b"\xff", "not UTF-8")])
def test_a_password_file_that_cannot_be_used_is_named(
    content: str | bytes | None, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(StartupError, match=problem) as caught:
        Store(f"postgresql://me@127.0.0.1:1/db?password_file={file}")
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("url", ["me:secret@host/db?password_file=f", "host/db?password=secret&password_file=f"])
def test_two_passwords_are_refused(url: str) -> None:
    with pytest.raises(StartupError, match="no other password beside it") as caught:
        Store(f"postgresql://{url}")
    assert "secret" not in str(caught.value)
