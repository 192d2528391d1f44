"""More work than the server can do: it answers 429 or 503, drops what clients gave up, and recovers."""

import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from socket import create_connection
from threading import Event
from typing import Any

import httpx2
import pytest

from comln_serve.configuration.settings import Settings
from comln_serve.engine import engine as engine_module
from comln_serve.engine.classifiers.catalogue import Catalogue
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.engine.engine import Engine
from comln_serve.errors import ErrorCode
from comln_serve.storage import TenantStore, database
from tests.support import http
from tests.support.engines import MakeEngine
from tests.support.image_files import image_bytes
from tests.support.keyed import bearer, new_key
from tests.support.messages import adapt_form, check_error, predict_form, predict_json
from tests.support.serving import Held, served
from tests.support.waiting import Gate, wait_until

RED = image_bytes()


@pytest.fixture(params=[True, False], ids=["as on a GPU", "as on a CPU"])
def batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether images are embedded as on a GPU, or as on a CPU."""
    monkeypatch.setattr(OnnxBackbone, "on_gpu", request.param)
    return bool(request.param)


@pytest.fixture
def small(make_engine: MakeEngine, batches: bool) -> Iterator[tuple[str, Engine, Held]]:
    """A server that takes 8 images at a time, in batches of 4, with a classifier `known`."""
    limits = {"max_images": 8, "max_pending_images": 8, "max_batch_size": 4, "inference_threads": 1}
    patience = {"max_queue_seconds": 300.0, "max_inference_seconds": 300.0}  # on slow machines
    engine = make_engine(**(limits | patience))
    held = Held(engine)
    with served(engine) as url:
        http.post(f"{url}/adapt", **adapt_form(name="known")).raise_for_status()
        try:
            yield url, engine, held
        finally:
            held.release()


def post(url: str, body: dict[str, Any]) -> httpx2.Response:
    """On a connection of its own."""
    return http.post(url, **body)


def predict(url: str, count: int = 1) -> httpx2.Response:
    return post(f"{url}/predict", predict_form(*[RED] * count))


@pytest.mark.parametrize("count", [1, 4])
def test_images_beyond_the_limit_are_429(small: tuple[str, Engine, Held], count: int) -> None:
    """Whatever fits is answered 200 and the rest 429, counted in images; then all is well again."""
    url, engine, held = small
    held.hold()
    clients = 10 * 8 // count
    with ThreadPoolExecutor(clients) as pool:
        tasks = [pool.submit(predict, url, count) for _ in range(clients)]
        wait_until(lambda: sum(task.done() for task in tasks) == clients - 8 // count)
        assert http.get(f"{url}/health/ready").status_code == 200
        held.release()
        answers = [task.result() for task in tasks]
    assert Counter(answer.status_code for answer in answers) == {200: 8 // count, 429: clients - 8 // count}
    for answer in answers:
        if answer.status_code == 429:
            error = check_error(answer, ErrorCode.OVERLOADED)
            assert error["detail"] == {"pending": 8, "received": count, "limit": 8}
            assert int(answer.headers["retry-after"]) >= 1
    assert sum(held.batches) == 8
    assert max(held.batches) <= 4
    assert engine.images.pending == 0
    for _ in range(5):
        assert predict(url, 8).status_code == 200


TRAFFIC = ("adapt", "examples", "predict")


def send_two(url: str, kind: str) -> httpx2.Response:
    """A request of two images."""
    match kind:
        case "adapt":
            return post(f"{url}/adapt", adapt_form())
        case "examples":
            return post(f"{url}/classifiers/known/examples", adapt_form())
        case _:
            return predict(url, 2)


@pytest.mark.parametrize("kinds", [("adapt",), ("examples",), TRAFFIC], ids="-".join)
def test_images_of_every_kind_of_request_count_the_same(
    small: tuple[str, Engine, Held], kinds: tuple[str, ...]
) -> None:
    """Images count the same whatever is done with them, and what was turned away left nothing."""
    url, engine, held = small
    held.hold()
    clients = 10 * 8 // 2
    with ThreadPoolExecutor(clients) as pool:
        tasks = [pool.submit(send_two, url, kinds[i % len(kinds)]) for i in range(clients)]
        wait_until(lambda: sum(task.done() for task in tasks) == clients - 4)
        # The limit is one for all kinds of work; light routes go on.
        for kind in TRAFFIC:
            check_error(send_two(url, kind), ErrorCode.OVERLOADED)
        assert http.get(f"{url}/health/ready").status_code == 200
        assert len(http.get(f"{url}/classifiers/known/examples").json()["examples"]) == 2
        held.release()
        answers = [task.result() for task in tasks]
    statuses = Counter(answer.status_code for answer in answers)
    assert statuses[429] == clients - 4
    assert statuses[200] + statuses[201] == 4
    for answer in answers:
        if answer.status_code == 429:
            check_error(answer, ErrorCode.OVERLOADED)
    assert engine.images.pending == 0
    assert engine.store.count() == 1 + statuses[201]
    for kind in TRAFFIC:
        assert send_two(url, kind).is_success


@pytest.mark.slow
def test_lasting_overload_gets_200_and_429_only(small: tuple[str, Engine, Held]) -> None:
    """Ten times as many clients as fit, each trying again at once: nothing but 200 and 429."""
    url, engine, _ = small
    statuses: Counter[int] = Counter()

    def client(_: int) -> list[int]:
        with http.session() as session:
            return [session.post(f"{url}/predict", **predict_form(RED)).status_code for _ in range(5)]

    with ThreadPoolExecutor(80) as pool:
        for answers in pool.map(client, range(80)):
            statuses.update(answers)
    assert set(statuses) <= {200, 429}
    assert statuses[200] > 0
    assert predict(url).status_code == 200
    assert engine.images.pending == 0


@pytest.mark.parametrize("route", ["predict", "adapt"])
def test_clients_that_leave_are_dropped_before_they_are_embedded(small: tuple[str, Engine, Held], route: str) -> None:
    url, engine, held = small
    held.hold()
    form = predict_form(RED, RED) if route == "predict" else adapt_form(name="left")
    request = httpx2.Request("POST", f"{url}/{route}", **form)
    raw = b"".join(
        [f"POST /{route} HTTP/1.1\r\n".encode()]
        + [f"{name}: {value}\r\n".encode() for name, value in request.headers.items()]
        + [b"\r\n", request.read()]
    )
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(predict, url, held.threads)
        wait_until(lambda: held.batches == [1] * held.threads)
        address = (request.url.host, request.url.port or 80)
        connections = [create_connection(address, timeout=30) for _ in range(2)]
        for connection in connections:
            connection.sendall(raw)
        wait_until(lambda: held.queued == 4)
        for connection in connections:
            connection.close()
        wait_until(lambda: held.queued == 0)
        wait_until(lambda: engine.images.pending == held.threads)
        held.release()
        assert first.result().status_code == 200
    assert held.batches == [1] * held.threads
    listed = http.get(f"{url}/classifiers").json()["classifiers"]
    assert [item["name"] for item in listed] == ["known"]


@pytest.mark.parametrize(
    ("setting", "code"),
    [("max_queue_seconds", ErrorCode.QUEUE_TIMEOUT), ("max_inference_seconds", ErrorCode.INFERENCE_TIMEOUT)],
)
@pytest.mark.usefixtures("batches")
def test_requests_beyond_their_deadline_are_503_or_504(make_engine: MakeEngine, setting: str, code: ErrorCode) -> None:
    update = {setting: 0.3, "max_batch_size": 1, "inference_threads": 1}
    engine = make_engine(**update)
    held = Held(engine)
    with served(engine) as url:
        http.post(f"{url}/adapt", **adapt_form(name="known")).raise_for_status()
        held.hold()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(predict, url, held.threads)
            wait_until(lambda: held.batches == [1] * held.threads)
            try:
                if code is ErrorCode.QUEUE_TIMEOUT:
                    check_error(predict(url), code)
                    assert held.queued == 0
                else:
                    check_error(running.result(30), code)
            finally:
                held.release()
            assert running.result(30).status_code == (200 if code is ErrorCode.QUEUE_TIMEOUT else 504)
        wait_until(lambda: predict(url).status_code == 200)
        assert engine.images.pending == 0


def test_predictions_wait_for_a_warming_server_and_probes_do_not(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for it; the event loop does not."""
    warming = Gate(monkeypatch, engine_module, "compile_flow")
    engine = make_engine()
    with served(engine, wait=False) as url, ThreadPoolExecutor(1) as pool:
        warming.wait()
        try:
            waiting = pool.submit(predict, url)
            in_flight = 'comln_pending{unit="requests"} 1'
            wait_until(lambda: in_flight in http.get(f"{url}/metrics").text)
            assert http.get(f"{url}/health/live").status_code == 200
            assert http.get(f"{url}/health/ready").status_code == 503
        finally:
            warming.open()
        check_error(waiting.result(60), ErrorCode.CLASSIFIER_NOT_FOUND)


def test_readers_are_served_while_writers_wait_for_the_database(
    settings: Settings, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than the threads that reads are answered on."""
    monkeypatch.setattr(database, "LOCK_SECONDS", 60.0)
    monkeypatch.setitem(database._SQLITE_ARGUMENTS, "timeout", 60.0)
    file = settings.database_url.removeprefix("sqlite:///")
    engine = make_engine()
    with served(engine) as url, ThreadPoolExecutor(60) as pool:
        http.post(f"{url}/adapt", **adapt_form(name="known")).raise_for_status()
        with closing(sqlite3.connect(file)) as other:
            other.execute("BEGIN IMMEDIATE")
            writers = [
                pool.submit(http.request, method, f"{url}/classifiers/absent{path}", timeout=120)
                for method, path in (("DELETE", ""), ("POST", "/promote"), ("POST", "/rollback"))
                for _ in range(20)
            ]
            pending = 'comln_pending{unit="requests"} 60.0'
            wait_until(lambda: pending in http.get(f"{url}/metrics").text)
            (listed,) = http.get(f"{url}/classifiers").json()["classifiers"]
            assert listed["name"] == "known"
            answer = http.post(f"{url}/predict", **predict_json(RED))
            assert answer.status_code == 200
            assert not any(writer.done() for writer in writers)
            other.execute("ROLLBACK")
        assert {writer.result().status_code for writer in writers} == {404}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "method", "path", "body"),
    [
        (TenantStore, "describe", "GET", "/classifiers/absent", {}),
        (TenantStore, "page", "GET", "/classifiers", {}),
        (TenantStore, "edit", "PATCH", "/classifiers/absent", {"json": {"metadata": {}}}),
        (Catalogue, "find", "POST", "/predict", predict_json(RED, classifier="absent")),
    ],
)
def test_a_tenant_with_many_requests_keeps_no_other_from_reading_and_changing(
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    method: str,
    path: str,
    body: dict[str, Any],
) -> None:
    """Only those that have begun are finished first; in order, all would be."""
    engine = make_engine(require_keys=True)
    many, one = (bearer(new_key(engine.store, tenant)) for tenant in ("many", "one"))
    call, begun, gate = getattr(owner, name), list[str](), Event()

    def slow(self: Any, *arguments: Any, **options: Any) -> Any:
        begun.append(getattr(self, "_tenant", None) or arguments[-1])
        gate.wait(60)
        return call(self, *arguments, **options)

    monkeypatch.setattr(owner, name, slow)
    with served(engine) as url, ThreadPoolExecutor(41) as pool:

        def ask(headers: dict[str, str]) -> int:
            return http.request(method, f"{url}{path}", headers=headers, timeout=120, **body).status_code

        tasks = [pool.submit(ask, many) for _ in range(40)]
        wait_until(lambda: len(begun) > 0)
        time.sleep(0.5)  # until all wait
        first = len(begun)
        tasks.append(pool.submit(ask, one))
        time.sleep(0.5)
        gate.set()
        assert {task.result(120) for task in tasks} <= {200, 404}
    assert first <= 8
    assert begun.index("one") <= 3 * first
