"""What the client asks again, what it does not, and answers that are not the server's."""

import asyncio
import re
import sys
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from comln_serve.client import AsyncClient, Client, ComlnError, InputError, NoAnswerError, asking
from comln_serve.engine.engine import Engine
from tests.client.wires import PAIR, Wire, client_on, nothing, times, wire_to
from tests.support.keyed import keyed, keyed_settings, new_key, store_of
from tests.support.messages import RED
from tests.support.serving import served

__all__ = ["keyed", "keyed_settings"]  # fixtures

pytestmark = pytest.mark.usefixtures("quick")


def test_a_lost_answer_makes_nothing_twice(comln: Client, line: Wire) -> None:
    """The server has done it, and the client does not know: it asks again with the same key."""
    comln.predict([RED], comln.adapt(*PAIR))  # knows the limits now
    line.keys.clear()
    line.after = times(2, lambda _request: httpx2.ReadError("gone"))
    assert comln.adapt(*PAIR, name="once").version == 1
    assert len(line.keys) == 3
    assert len(set(line.keys)) == 1
    line.after = times(1, lambda _request: httpx2.ReadTimeout("slow"))
    assert comln.add_examples("once", *PAIR).version == 2
    line.after = times(1, lambda _request: httpx2.ReadError("gone"))
    assert comln.adapt_again("once@2", horizon=4).version == 3
    assert comln.delete("once@3").horizon == 4.0
    line.after = times(1, lambda _request: httpx2.ReadError("gone"))
    assert comln.delete(comln.rename_classes("once", {"red": "Red"})).labels == ("Red", "green")
    assert len(comln.classifiers(name="once")) == 2
    line.after = times(2, lambda request: httpx2.ReadError("gone") if request.method == "DELETE" else None)
    assert comln.delete("once").version == 2
    assert [item.version for item in comln.classifiers(name="once")] == [1]


def test_what_cannot_be_repeated_is_not(comln: Client, line: Wire) -> None:
    for _ in range(3):
        comln.adapt(*PAIR, name="pair")
    line.after = times(1, lambda _request: httpx2.ReadError("gone"))
    with pytest.raises(NoAnswerError, match="the connection to http://testserver failed: gone"):
        comln.rollback("pair")
    assert comln.classifier("pair").version == 2
    line.before = times(1, lambda _request: httpx2.ConnectError("refused"))  # nothing was sent
    assert comln.rollback("pair").version == 1


def busy(status: int, code: str, wait: str | None) -> httpx2.Response:
    body = {"error": {"code": code, "message": "later", "detail": {}, "request_id": "r"}}
    return httpx2.Response(status, json=body, headers={} if wait is None else {"Retry-After": wait})


@pytest.mark.parametrize(
    "answer",
    [
        (429, "overloaded", "0"),
        (429, "rate_limited", "0"),
        (503, "not_ready", "0"),
        (503, "queue_timeout", None),
        (500, "internal", None),
        (504, "inference_timeout", None),
    ],
)
def test_an_answer_that_may_get_better_is_asked_for_again(comln: Client, line: Wire, answer: Any) -> None:
    line.before = times(2, lambda _request: busy(*answer))
    assert comln.adapt(*PAIR).labels == ("red", "green")


def test_patience_ends(line: Wire) -> None:
    line.before = lambda _request: busy(503, "not_ready", "0")
    with client_on(line, retry_seconds=0.1) as client, pytest.raises(ComlnError, match="later") as caught:
        client.models()
    assert (caught.value.code, caught.value.status, caught.value.request_id) == ("not_ready", 503, "r")
    # Asked to wait longer than it may, the client does not begin to.
    asked: list[str] = []
    line.before = lambda request: asked.append(request.url.path) or busy(429, "rate_limited", "3600")
    with client_on(line) as client, pytest.raises(ComlnError, match="later"):
        client.models()
    assert asked == ["/models"]


def test_a_long_wait_is_told(line: Wire, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    line.before = lambda _request: busy(503, "not_ready", "0")
    with client_on(line, retry_seconds=0.3) as client:
        with pytest.raises(ComlnError):
            client.models()
        assert caplog.messages == []
        monkeypatch.setattr(asking, "_SILENT_S", 0.1)
        with pytest.raises(ComlnError):
            client.models()
    assert re.fullmatch(r"GET /models is tried again in \d\.\d s: .*later.*", caplog.messages[-1])


def test_an_address_that_never_answered_is_given_up_soon(line: Wire) -> None:
    line.before = lambda _request: httpx2.ConnectError("refused")
    asked = r"no server can be reached at http://testserver: refused \(3 attempts in .* s\). Start one"
    with client_on(line) as client, pytest.raises(NoAnswerError, match=asked):
        client.predict([RED], "pair")


def test_a_server_that_is_too_slow_is_not_one_that_is_not_there(comln: Client, line: Wire) -> None:
    line.before = lambda _request: httpx2.ReadTimeout("")
    asked = r"the server at http://testserver gave no answer in time \(ReadTimeout\).*\. Give it longer: timeout=\.\.\."
    with client_on(line, retry_seconds=0) as client, pytest.raises(NoAnswerError, match=asked):
        client.models()  # it has never answered
    line.before = nothing
    comln.models()
    line.before = lambda _request: httpx2.ReadTimeout("")
    with pytest.raises(NoAnswerError, match=asked):
        comln.rollback("pair")
    line.before = lambda _request: httpx2.ConnectTimeout("")
    with (
        client_on(line, retry_seconds=0) as client,
        pytest.raises(NoAnswerError, match=r"no server can be reached at .*no answer in time"),
    ):
        client.models()


def test_waiting_for_a_server_that_starts(comln: Client, line: Wire) -> None:
    line.before = times(6, lambda _request: httpx2.ConnectError("refused"))
    assert comln.ready(wait=30).status == "ready"
    line.before = lambda _request: busy(503, "not_ready", "1")
    with pytest.raises(ComlnError, match="later"):
        comln.ready()
    with pytest.raises(InputError, match="wait is -1; give seconds, from 0 on"):
        comln.ready(wait=-1)


def test_the_last_attempt_is_at_the_end_of_the_time(line: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_FIRST_WAIT", 60.0)
    monkeypatch.setattr(asking, "_LONGEST_WAIT", 60.0)
    with client_on(line) as client:
        line.before = times(1, lambda _request: httpx2.ConnectError("refused"))
        assert client.ready(wait=0.05).status == "ready"


def test_waiting_in_vain_for_a_server_is_no_answer_of_it(line: Wire) -> None:
    line.before = lambda _request: httpx2.ConnectError("refused")
    with client_on(line) as client:
        with pytest.raises(NoAnswerError, match="no server can be reached at"):
            client.ready(wait=0.1)
        with pytest.raises(NoAnswerError, match=r"no server can be reached at .* \(3 attempts in"):
            client.models()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx2.Response(200, text="<html>"), "answered GET /models with 200, but not as comln-serve does"),
        (httpx2.Response(200, json={"models": [{}]}), r"ModelList.models.0 has no 'name'"),
        (httpx2.Response(502, text="bad gateway"), "answered GET /models with 502, but not as comln-serve does"),
        (httpx2.Response(301, headers={"Location": "https://x/"}), "with 301 to https://x/, but not as comln-serve"),
        (httpx2.Response(404, json={"error": "other"}), "another program at this address"),
    ],
)
def test_answers_of_other_programs(line: Wire, answer: httpx2.Response, said: str) -> None:
    line.before = lambda _request: answer
    with client_on(line, retry_seconds=0.05) as client, pytest.raises(ComlnError, match=said) as caught:
        client.models()
    assert (caught.value.code, caught.value.status) == (None, answer.status_code)


def test_an_answer_that_cannot_be_decoded(line: Wire) -> None:
    """As of a proxy that damages what it compresses."""
    encoded = {"Content-Encoding": "gzip"}
    said = r"the answer of http://testserver cannot be decoded: .*header check \(3 attempts"
    with client_on(line, retry_seconds=1) as new, client_on(line, retry_seconds=1) as known:
        known.models()
        line.before = lambda _request: httpx2.Response(200, headers=encoded, stream=httpx2.ByteStream(b"none"))
        for client in (new, known):
            with pytest.raises(NoAnswerError, match=said):
                client.models()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000",
        "ftp://host",
        "http://",
        "http://host/?a=b",
        "http://[::1",
        "http://host:99999",
        "http://host/\udce9",
    ],
)
def test_addresses_that_are_none(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMLN_URL", raising=False)
    if url == "":
        assert Client(url).url == "http://127.0.0.1:8000"
        return
    with pytest.raises(InputError, match="url is"):
        Client(url)


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9"])
def test_the_environments_proxies_are_not_for_this_machine(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    """Not even looked at: one of a kind that is not supported does no harm."""

    async def ask(url: str) -> int:
        async with AsyncClient(url) as client:
            return len(await client.models())

    with served(engine) as address:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        for url in (address, address.replace("127.0.0.1", "localhost")):
            with Client(url) as client:
                assert client.models()
            assert asyncio.run(ask(url)) > 0


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "ftp://127.0.0.1:9", "http://[::1"])
def test_a_proxy_of_the_environment_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.setitem(sys.modules, "socksio", None)  # what SOCKS needs
    for kind in (Client, AsyncClient):
        with pytest.raises(InputError, match="a proxy that the environment names"):
            kind("http://example.org")


def test_an_address_of_a_page_of_the_server(comln: Client, line: Wire) -> None:
    """As one copied from a browser."""
    with pytest.raises(ComlnError, match=r"must be the address of the server itself, .*; perhaps http://[\w.:]+/$"):
        Client(f"{comln.url}/docs", transport=line).models()


@pytest.mark.parametrize(("status", "code"), [(404, "route_not_found"), (405, "method_not_allowed")])
def test_a_route_that_an_earlier_server_lacks(status: int, code: str) -> None:
    error = {"code": code, "message": "No.", "detail": {}, "request_id": "r"}
    transport = httpx2.MockTransport(lambda _: httpx2.Response(status, json={"error": error}))
    with (
        Client("http://localhost", transport=transport) as client,
        pytest.raises(ComlnError, match=r"of this client's release or a later one$"),
    ):
        client.models()


def test_the_environment_names_server_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMLN_URL", "https://example.org/comln/")
    monkeypatch.setenv("COMLN_KEY", "secret\n")  # as a file has it
    seen: list[httpx2.Request] = []
    transport = httpx2.MockTransport(lambda request: seen.append(request) or httpx2.Response(200, json={"models": []}))
    with Client(transport=transport) as client:
        assert client.url == "https://example.org/comln"
        client.models()
    assert str(seen[0].url) == "https://example.org/comln/models"
    assert seen[0].headers["authorization"] == "Bearer secret"
    assert seen[0].headers["user-agent"].startswith("comln-serve-client/")
    with pytest.raises(InputError, match="characters that no key has") as caught:
        Client(key="two words")
    assert "two words" not in str(caught.value)
    with pytest.raises(InputError, match="a user in the address of") as caught:
        Client("https://me:hidden@example.org/comln")
    assert "hidden" not in str(caught.value)


def test_keys(keyed: TestClient) -> None:
    key = new_key(store_of(keyed))
    with client_on(wire_to(keyed), key=key) as client:
        assert client.adapt(*PAIR, name="mine").reference == "mine@1"
    for wrong, said in ((None, "requires an API key"), ("nonsense", "no valid API key")):
        with client_on(wire_to(keyed), key=wrong) as client, pytest.raises(ComlnError, match=said) as caught:
            client.models()
        assert (caught.value.code, caught.value.status) == ("unauthorized", 401)
