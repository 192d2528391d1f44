"""Clients of an application in the process, and transports on which things go wrong; what commands print."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from click.testing import Result
from fastapi.testclient import TestClient

from comln_serve.client import Client, asking, chain
from tests.support.messages import GREEN, RED

PAIR = ([RED, GREEN], ["red", "green"])  # images and their labels
Run = Callable[..., Result]  # of `comln`
Fault = Callable[[httpx2.Request], httpx2.Response | Exception | None]


def nothing(_request: httpx2.Request) -> None:
    """No fault."""


def ctrl_c(method: str = "", ending: str | tuple[str, ...] = "") -> Fault:
    """The user's interrupt at every request of a method whose path ends so."""

    def fault(request: httpx2.Request) -> None:
        if request.method.startswith(method) and request.url.path.endswith(ending):
            raise KeyboardInterrupt

    return fault


class Wire(httpx2.BaseTransport):
    """Passes requests on and notes them.

    Attributes:
        before: called with each request; may return an answer, or an error to raise, in place of the server's.
        after: called with each request once the server has answered; the same.
        requests: "METHOD path" of all requests that reached the server, in order.
        keys: the Idempotency-Key of each, if any.
    """

    def __init__(self, inner: httpx2.BaseTransport) -> None:
        self.inner = inner
        self.before: Fault = nothing
        self.after: Fault = nothing
        self.requests: list[str] = []
        self.keys: list[str | None] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = self.before(request)
        if answer is None:
            self.requests.append(f"{request.method} {request.url.path}")
            self.keys.append(request.headers.get("idempotency-key"))
            given = self.inner.handle_request(request)
            answer = self.after(request) or given
            if answer is not given:
                given.close()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def calm(self) -> None:
        """From now on nothing goes wrong."""
        self.before = self.after = nothing

    def close(self) -> None:
        self.inner.close()


def wire_to(server: TestClient) -> Wire:
    """A wire to the application behind a client of tests."""
    return Wire(server._transport)


def uploads(wire: Wire) -> list[str]:
    return [item for item in wire.requests if item.startswith("POST") and item.endswith(("/adapt", "/examples"))]


def client_on(wire: Wire, **options: Any) -> Client:
    return Client("http://testserver", transport=wire, **options)


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients wait hundredths of seconds where they wait half a second, and give up cleaning soon."""
    monkeypatch.setattr(asking, "_FIRST_WAIT", 0.01)
    monkeypatch.setattr(asking, "_LONGEST_WAIT", 0.05)
    monkeypatch.setattr(chain, "_CLEANING_SECONDS", 0.5)


def times(number: int, fault: Fault) -> Fault:
    """The fault for the first so many requests, then none."""
    left = [number]

    def limited(request: httpx2.Request) -> httpx2.Response | Exception | None:
        if not left[0]:
            return None
        found = fault(request)
        left[0] -= found is not None
        return found

    return limited


def printed(result: Result) -> Any:
    """The JSON of a command that succeeded."""
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return json.loads(result.stdout)
