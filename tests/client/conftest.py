"""A client of the application in the process, and the wire between them."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from comln_serve.client import Client
from tests.client.wires import Wire, client_on, wire_to


@pytest.fixture
def line(client: TestClient) -> Wire:
    return wire_to(client)


@pytest.fixture
def comln(line: Wire) -> Iterator[Client]:
    with client_on(line) as client:
        yield client
