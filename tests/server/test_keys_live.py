"""A server process that requires keys."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import strategies as st

from tests.support import http
from tests.support.fuzzing import OPERATIONS, few_or_many, try_all
from tests.support.keyed import bearer
from tests.support.live import LiveServer, live_server
from tests.support.messages import adapt_form
from tests.support.programs import python
from tests.support.sockets import connect

PUBLIC = {("GET", prefix + path) for prefix in ("", "/v2") for path in ("/health/live", "/health/ready")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def server(models_dir: Path, folder: Path) -> Iterator[LiveServer]:
    """On every address, with no key at its start."""
    flags = ("--default-model", "tiny", "--require-keys", "--host", "0.0.0.0")
    with live_server(models_dir, folder, *flags) as server:
        yield server
        assert "Traceback" not in server.log.read_text()


def created(folder: Path, *flags: str) -> dict[str, str]:
    """Headers with a key of the real command's making."""
    database = f"sqlite:///{folder / 'classifiers.db'}"
    done = python("-m", "comln_serve.cli", "keys", "create", "--tenant", "acme", "--database-url", database, *flags)
    assert done.returncode == 0, done.stderr
    return bearer(done.stdout.strip())


@pytest.fixture(scope="module")
def admin(server: LiveServer, folder: Path) -> dict[str, str]:
    headers = created(folder, "--scope", "admin")
    form = adapt_form(name="known")
    http.post(f"{server.url}/adapt", headers=headers, **form).raise_for_status()
    return headers


def test_a_start_without_any_key_is_warned_of(server: LiveServer) -> None:
    lines = map(json.loads, server.log.read_text().splitlines())
    warnings = [line["message"] for line in lines if line["level"] == "warning"]
    assert any("comln-serve keys create" in message for message in warnings)
    assert not any("WITHOUT AUTHENTICATION" in message for message in warnings)


def test_a_key_opens_the_server_that_runs(server: LiveServer, admin: dict[str, str]) -> None:
    url = f"{server.url}/classifiers/known"
    assert http.get(url).status_code == 401
    assert http.get(url, headers=admin).status_code == 200


def test_a_request_without_a_key_is_answered_before_its_body(server: LiveServer) -> None:
    head = b"POST /adapt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
    with connect(server, head + b"Content-Type: application/json\r\n\r\n") as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 401 ")


@pytest.fixture(scope="module")
def limited(server: LiveServer, folder: Path) -> dict[str, str]:
    """Headers with a key for two predictions a minute."""
    return created(folder, "--scope", "predict", "--requests-per-minute", "2")


@few_or_many
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_requests_made_from_the_document(
    server: LiveServer, admin: dict[str, str], limited: dict[str, str], method: str, path: str, examples: int
) -> None:
    """Whatever key they come with, they get documented statuses and bodies."""
    operation = schemathesis.openapi.from_url(f"{server.url}/openapi.json")[path][method]

    def prepare(case: Any, data: st.DataObject) -> None:
        kept = {name: value for name, value in (case.headers or {}).items() if name.lower() != "authorization"}
        case.headers = kept | data.draw(st.sampled_from([admin, limited, bearer("wrong"), {}]))

    seen = try_all(operation.as_strategy(), examples, prepare)
    assert ((method, path) in PUBLIC) == seen.isdisjoint({401, 403, 429})
