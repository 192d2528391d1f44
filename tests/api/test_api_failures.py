"""Every kind of failing request gets its documented status and code, in one shape of error; the server goes on."""

import asyncio
import gc
import json
import re
from types import FrameType

import pytest
from fastapi.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from comln_serve.api.app import create_app
from comln_serve.api.errors import Refusals
from comln_serve.api.receive.intake import Intake
from comln_serve.api.receive.pace import Pace
from comln_serve.counts import Count, SharedCounts
from comln_serve.domain.classifier import Classifier
from comln_serve.engine.admission import Admission
from comln_serve.errors import ErrorCode
from comln_serve.storage import TenantStore
from tests.support.engines import MakeEngine, Serve, fails
from tests.support.failures import FAILURES, Failure
from tests.support.messages import (
    GREEN,
    RED,
    adapt_form,
    adapt_json,
    check_error,
    check_still_serving,
    engine_of,
    predict_form,
    raw,
)


def test_failing_requests_leave_no_cycles(service: TestClient) -> None:
    """Cycles would keep a request's body until a garbage collection, which a server seldom has."""
    gc.collect()
    gc.freeze()
    gc.set_debug(gc.DEBUG_SAVEALL)
    left: dict[str, list[str]] = {}
    try:
        for failure in FAILURES:
            service.request(failure.method, failure.path, **failure.request)
            gc.collect()
            frames = [one.f_code for one in gc.garbage if isinstance(one, FrameType)]
            if ours := [code.co_qualname for code in frames if "comln_serve" in code.co_filename]:
                left[f"{failure.method} {failure.path[:40]} {failure.name}"] = ours
            gc.garbage.clear()
    finally:
        gc.set_debug(0)
        gc.unfreeze()
    assert not left


@pytest.mark.parametrize("failure", FAILURES, ids=lambda f: f"{f.method} {f.path[:40]} {f.name}")
def test_a_failing_request_gets_its_documented_error(service: TestClient, failure: Failure) -> None:
    """One shape, the documented status, nothing stored, and the server goes on."""
    stored = service.get("/classifiers").json()
    answer = service.request(failure.method, failure.path, **failure.request)
    error = check_error(answer, failure.code)
    assert failure.says in error["message"]
    assert failure.detail.items() <= error["detail"].items()
    assert len(answer.content) < 20_000, "what was received is echoed in part only"

    route = re.sub("^/classifiers/[^/]+", "/classifiers/{ref}", failure.path.partition("?")[0])
    document = service.get("/openapi.json").json()
    responses = document["paths"][route][failure.method.lower()]["responses"]
    assert failure.code.value in responses[str(answer.status_code)]["description"]

    assert service.get("/classifiers").json() == stored
    check_still_serving(service)


def test_json_of_any_depth_is_answered_or_refused(service: TestClient) -> None:
    """Between what the JSON reader refuses and what is shallow lies what only later code meets."""
    for depth in (*range(10, 800, 40), *range(800, 1100, 5)):
        nest = b"[" * depth + b"]" * depth
        for path, body in (
            ("/adapt", b'{"support": ' + nest + b"}"),
            ("/adapt", nest),
            ("/predict", b'{"classifier": "known", "images": [], "x": ' + nest + b"}"),
        ):
            check_error(service.post(path, **raw(body)), ErrorCode.INVALID_REQUEST)
    check_still_serving(service)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/adapt", b'{"support": [' + b"1," * 9 + b"1]}"),
        ("/predict", b'{"classifier": "known", "images": [' + b"1," * 9 + b"1]}"),
        ("/adapt", json.dumps(dict.fromkeys(map(str, range(6_000)))).encode()),
        ("/adapt", json.dumps({"support": [dict.fromkeys(map(str, range(6_000)))]}).encode()),
    ],
    ids=["support", "images", "fields", "fields of an image"],
)
def test_all_mistakes_of_a_request_are_reported_together(service: TestClient, path: str, content: bytes) -> None:
    """Pydantic's report of a mistake takes hundreds of times the two bytes that make one. Images beyond the limit are
    counted before they are looked at.
    """
    error = check_error(service.post(path, **raw(content)), ErrorCode.INVALID_REQUEST)
    assert len(error["detail"]["problems"]) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/nothing"), ("GET", "/classifiers/a/b"), ("DELETE", "/%2e%2e/x"), ("GET", "/caf\u00e9")],
)
def test_an_unknown_route_is_404(service: TestClient, method: str, path: str) -> None:
    answer = service.request(method, path, follow_redirects=False)
    error = check_error(answer, ErrorCode.ROUTE_NOT_FOUND)
    assert "/docs" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "there"),
    [
        ("POST", "/predict/", "/predict"),
        ("POST", "/adapt/", "/adapt"),
        ("GET", "/predict/", "/predict"),
        ("DELETE", "/classifiers/known//", "/classifiers/known"),
        ("GET", "/v2/", "/v2"),
        ("GET", "/docs/", "/docs"),
        ("GET", "/nothing/", None),
    ],
)
def test_a_slash_at_the_end_is_not_redirected(service: TestClient, method: str, path: str, there: str | None) -> None:
    answer = service.request(method, path, follow_redirects=False)
    if path.startswith("/v2"):
        assert answer.status_code == 404
        message = answer.json()["error"]
    else:
        message = check_error(answer, ErrorCode.ROUTE_NOT_FOUND)["message"]
    advice = "GET /docs lists" if there is None else f"There is {there}: leave the slash"
    assert advice in message
    assert service.get("/classifiers/known").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/adapt", {"POST"}),
        ("PUT", "/predict", {"POST"}),
        ("DELETE", "/classifiers", {"GET", "POST"}),
        ("POST", "/models", {"GET"}),
        ("POST", "/health/live", {"GET"}),
        ("PUT", "/classifiers/known", {"GET", "PATCH", "DELETE"}),
        ("OPTIONS", "/adapt", {"POST"}),
        ("BREW", "/models", {"GET"}),
    ],
)
def test_a_method_that_a_route_lacks_is_405(service: TestClient, method: str, path: str, allowed: set[str]) -> None:
    answer = service.request(method, path)
    check_error(answer, ErrorCode.METHOD_NOT_ALLOWED)
    assert set(answer.headers["allow"].split(", ")) == allowed | ({"HEAD"} if "GET" in allowed else set())


def test_refused_clients_wait_for_the_answer(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they do about Retry-After. Other errors are answered at once."""
    waited = 0

    async def wait(_self: Refusals) -> None:
        nonlocal waited
        waited += 1

    client = serve(max_pending_requests=1)
    monkeypatch.setattr(Refusals, "wait", wait)
    with client.app.state.requests.admit(1):  # type: ignore[attr-defined]
        check_error(client.post("/predict", **predict_form(RED)), ErrorCode.OVERLOADED)
        check_error(client.get("/classifiers/unknown"), ErrorCode.CLASSIFIER_NOT_FOUND)
    assert waited == 1


@pytest.mark.parametrize("counted", ["requests", "images"])
def test_more_images_than_may_be_pending_are_429(serve: Serve, counted: str) -> None:
    client = serve(max_pending_requests=3, max_images=4, max_pending_images=4)
    client.post("/adapt", **adapt_form(name="known"))
    busy = (
        client.app.state.requests.admit(3)  # type: ignore[attr-defined]
        if counted == "requests"
        else engine_of(client).images.admit(3)
    )
    with busy:
        for method, path, request in (
            ("POST", "/adapt", adapt_form()),
            ("POST", "/adapt", adapt_json()),
            ("POST", "/classifiers/known/examples", adapt_form()),
            ("POST", "/predict", predict_form(RED, GREEN)),
            # Requests without images count as requests.
            *([("DELETE", "/classifiers/known/examples/1", {})] if counted == "requests" else []),
        ):
            answer = client.request(method, path, **request)
            error = check_error(answer, ErrorCode.OVERLOADED)
            assert answer.headers["retry-after"] == "1"
            assert error["detail"]["limit"] == (3 if counted == "requests" else 4)
        assert client.get("/health/ready").status_code == 200
        assert client.get("/classifiers").json()["classifiers"][0]["name"] == "known"
    assert client.post("/predict", **predict_form(RED, GREEN)).status_code == 200
    assert len(client.get("/classifiers").json()["classifiers"]) == 1


def scope_of(*headers: tuple[bytes, bytes]) -> Scope:
    """Of a request with this head."""
    return {"type": "http", "headers": headers}


def test_a_body_in_small_pieces_is_large_by_their_sum() -> None:
    """It leaves room for small bodies, though each of its pieces is one."""
    held = Admission(640, Count.BYTES, SharedCounts(), largest=100)
    pieces = [b"x" * 10] * 60
    received = 0

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        nonlocal received
        while (await receive())["more_body"]:
            received += 1

    async def receive() -> Message:
        return {"type": "http.request", "body": pieces.pop(), "more_body": bool(pieces)}

    async def send(_message: Message) -> None: ...

    error = fails(ErrorCode.OVERLOADED, lambda: asyncio.run(Intake(app, held, Pace(), 60)(scope_of(), receive, send)))
    assert (received, error.detail["limit"], held.pending) == (56, 560, 0)


def test_what_may_be_large_is_refused_while_unread_answers_fill_the_memory(client: TestClient) -> None:
    """A request without a body takes nothing of that memory itself; its answer would, until it is read."""
    client.post("/adapt", **adapt_form(name="known")).raise_for_status()
    held: Admission = client.app.state.held  # type: ignore[attr-defined]
    large = ("/classifiers", "/classifiers/known", "/classifiers/known/examples", "/classifiers/known/export")
    limit = engine_of(client).settings.max_pending_bytes
    held.hold(limit)
    for path in large:
        check_error(client.get(path), ErrorCode.OVERLOADED)
    check_error(client.patch("/classifiers/known", json={"metadata": {}}), ErrorCode.OVERLOADED)
    assert client.get("/limits").status_code == 200
    held.give_back(limit)
    assert [client.get(path).status_code for path in large] == [200] * 4


def test_large_parts_of_an_answer_are_sent_in_pieces_and_count_until_all_are_sent() -> None:
    held = Admission(100, Count.BYTES, SharedCounts())
    size, piece = 2**19 + 1, 2**18
    sent: list[tuple[int, bool, int]] = []

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": bytes(size), "more_body": True})
        await send({"type": "http.response.body", "body": bytes(size)})
        await send({"type": "http.response.body", "body": bytes(size)})

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        if len(sent) == 6:
            raise ConnectionError
        if message["type"] == "http.response.body":
            sent.append((len(message["body"]), message["more_body"], held.pending))

    with pytest.raises(ConnectionError):
        asyncio.run(Intake(app, held, Pace(), 60)(scope_of(), receive, send))
    part = [(piece, True, size), (piece, True, size), (1, True, size)]
    assert sent == [*part, *part[:2], (1, False, size)]
    assert held.pending == 0


def test_that_a_client_left_is_noticed_while_answers_fill_the_memory() -> None:
    """The end of a request without a body has no bytes that could be refused."""
    held = Admission(100, Count.BYTES, SharedCounts(), largest=100)
    messages: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}, {"type": "http.disconnect"}]
    received: list[str] = []

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        received.extend([(await receive())["type"], (await receive())["type"]])

    async def receive() -> Message:
        return messages.pop(0)

    async def send(_message: Message) -> None: ...

    held.hold(200)
    asyncio.run(Intake(app, held, Pace(), 60)(scope_of(), receive, send))
    assert received == ["http.request", "http.disconnect"]


def test_that_a_client_left_is_noticed_while_bodies_wait_to_be_received() -> None:
    """The end of a request without a body has none that could wait, or be refused."""
    held = Admission(100, Count.BYTES, SharedCounts(), largest=100)

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        await receive()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_message: Message) -> None: ...

    async def run(*headers: tuple[bytes, bytes]) -> None:
        pace = Pace(most_waiting=0)
        pace.connected()
        await pace.turn("")  # another request's
        await Intake(app, held, pace, 60)(scope_of(*headers), receive, send)

    for headers in ([], [(b"content-length", b"0")]):
        asyncio.run(run(*headers))
    for header in ((b"content-length", b"5"), (b"transfer-encoding", b"chunked")):
        fails(ErrorCode.OVERLOADED, lambda header=header: asyncio.run(run(header)))  # type: ignore[misc]


def test_a_body_that_has_begun_to_arrive_waits_for_its_turn_and_is_not_refused() -> None:
    held, pieces = Admission(100, Count.BYTES, SharedCounts()), [b"x"] * 3

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        while (await receive())["more_body"]:
            pass

    async def receive() -> Message:
        return {"type": "http.request", "body": pieces.pop(), "more_body": bool(pieces)}

    async def send(_message: Message) -> None: ...

    async def run() -> None:
        pace = Pace(most_waiting=0)
        pace.connected()
        await Intake(app, held, pace, 60)(scope_of((b"content-length", b"3")), receive, send)

    asyncio.run(run())
    assert not pieces


def test_a_store_that_is_gone_is_503(client: TestClient) -> None:
    client.post("/adapt", **adapt_form(name="known"))
    engine_of(client).store.close()
    for method, path, request in (
        ("POST", "/adapt", adapt_form()),
        ("POST", "/predict", predict_form(RED)),
        ("GET", "/classifiers", {}),
        ("GET", "/classifiers/known", {}),
        ("DELETE", "/classifiers/known", {}),
        ("GET", "/health/ready", {}),
    ):
        check_error(client.request(method, path, **request), ErrorCode.STORAGE_UNAVAILABLE)
    assert client.get("/health/live").status_code == 200
    assert client.get("/models").status_code == 200


def test_not_ready_until_warm(make_engine: MakeEngine) -> None:
    engine = make_engine()
    client = TestClient(create_app(engine))  # not entered: the application has not started
    check_error(client.get("/health/ready"), ErrorCode.NOT_READY)
    assert client.get("/health/live").status_code == 200
    engine.warm()
    assert client.get("/health/ready").status_code == 200


def test_an_unexpected_failure_reveals_nothing_internal(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client.post("/adapt", **adapt_form(name="known")).raise_for_status()
    client.post("/predict", **predict_form(RED)).raise_for_status()

    def fails(*_: object) -> None:
        raise RuntimeError("made up")

    # On the thread of a request, and on one of the model's.
    monkeypatch.setattr(TenantStore, "add", fails)
    monkeypatch.setattr(Classifier, "probabilities", fails)
    for path, form in (("/adapt", adapt_form()), ("/predict", predict_form(RED))):
        error = check_error(client.post(path, **form), ErrorCode.INTERNAL)
        assert error["detail"] == {}
        assert "made up" not in error["message"]
    assert engine_of(client).images.pending == 0
    client.delete("/classifiers/known").raise_for_status()
    assert client.get("/classifiers").json()["classifiers"] == []


def test_json_has_a_limit_of_its_own(serve: Serve) -> None:
    client = serve(max_json_bytes=1000)
    body = b'{"support": [' + b" " * 1000 + b"]}"
    answer = client.post("/adapt", content=body, headers={"Content-Type": "application/json"})
    check_error(answer, ErrorCode.BODY_TOO_LARGE)


@pytest.mark.parametrize("path", ["/adapt", "/classifiers"])
def test_what_a_name_may_be_is_said_in_words(service: TestClient, path: str) -> None:
    if path == "/adapt":
        answer = service.post(path, **adapt_form(name="My shop"))
    else:
        answer = service.get(path, params={"name": "My shop"})
    message = check_error(answer, ErrorCode.INVALID_REQUEST)["message"]
    assert "letters" in message
    assert "[A-Za-z" not in message
