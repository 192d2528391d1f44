"""A client of the application in the process, the wire between them, and `comln` on that wire."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from comln_serve.client import Client
from comln_serve.client.commands import connection, main
from tests.client.pictures import class_folder
from tests.client.wires import Run, Wire, client_on, hurry, wire_to
from tests.support.engines import Serve


@pytest.fixture
def line(client: TestClient) -> Wire:
    return wire_to(client)


@pytest.fixture
def comln(line: Wire) -> Iterator[Client]:
    with client_on(line) as client:
        yield client


@pytest.fixture
def photos(comln: Client, tmp_path: Path) -> Path:
    """Six photos, and a classifier of them, `shop`."""
    folder = class_folder(tmp_path / "photos")
    comln.adapt_folder(folder, name="shop")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve images of three classes."""
    return class_folder(tmp_path / "photos", each=4)


@pytest.fixture
def wired(serve: Serve) -> Callable[..., Wire]:
    """Makes wires to a server with the settings given."""
    return lambda **limits: wire_to(serve(**limits))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture
def run(line: Wire, quick: None, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `comln`, on the application in this process."""
    monkeypatch.setattr(connection, "Client", functools.partial(Client, transport=line))
    monkeypatch.setenv("COMLN_URL", "http://testserver")
    monkeypatch.delenv("COMLN_KEY", raising=False)
    return lambda *arguments, **more: CliRunner().invoke(main, [str(item) for item in arguments], **more)
