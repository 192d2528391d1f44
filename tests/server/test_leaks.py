"""Requests of every kind, failed and broken-off ones included, leave no file and no thread open."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import create_connection
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.support import http
from tests.support.engines import MakeEngine
from tests.support.image_files import colour_support, image_bytes
from tests.support.live import LiveServer, live_server
from tests.support.messages import adapt_form, adapt_json, predict_form
from tests.support.processes import needs_proc, open_files_and_threads
from tests.support.serving import Held, served
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, needs_proc]

CLIENTS = 8
TIMES = 50  # for each kind
# Connections to the database that the server keeps once it has needed them, and the files of each.
KEPT = 16 * 3
RED = image_bytes()
LARGE = image_bytes(size=(900, 900))  # kept in a temporary file while it is received
# Contradicts itself, for a very long time: seldom followed to its end in the time allowed.
HOPELESS = [(image_bytes(seed=seed), label) for seed in range(2) for label in ("a", "b")]


@pytest.fixture(scope="module")
def server(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    flags = ("--default-model", "tiny", "--max-solve-seconds", "0.01")
    folder = tmp_path_factory.mktemp("leaks")
    with live_server(models_dir, folder, *flags) as server:
        http.post(f"{server.url}/adapt", **adapt_form(name="known")).raise_for_status()
        yield server
        assert "Traceback" not in server.log.read_text()


def broken_off(url: str, path: str, form: bool) -> int:
    """Half a body, and then nobody is there any more."""
    build = adapt_form([(LARGE, "a"), (RED, "b")]) if form else adapt_json(colour_support())
    request = httpx2.Request("POST", url + path, **build)
    body = request.read()
    head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{n}: {v}\r\n" for n, v in request.headers.items())
    where = urlsplit(url)
    with create_connection((where.hostname or "", where.port or 0), timeout=60) as connection:
        connection.sendall(head.encode() + b"\r\n" + body[: len(body) * 2 // 3])
    return 0


def kinds(url: str, session: httpx2.Client) -> dict[str, Callable[[], int]]:
    """A request of every kind, and its status."""

    def send(method: str, path: str, **body: object) -> Callable[[], int]:
        return lambda: session.request(method, url + path, **body).status_code  # type: ignore[arg-type]

    return {
        "adapt": send("POST", "/adapt", **adapt_form(colour_support())),
        "hopeless": send("POST", "/adapt", **adapt_form(HOPELESS, horizon="1e9")),
        "predict": send("POST", "/predict", **predict_form(*[RED] * 8)),
        "large": send("POST", "/predict", **predict_form(LARGE)),
        "no image": send("POST", "/predict", **predict_form(b"nothing")),
        "truncated": send("POST", "/predict", **predict_form(LARGE[:-1000])),
        "absent": send("POST", "/predict", **predict_form(RED, classifier="absent")),
        "no json": send("POST", "/adapt", content=b"{", headers={"Content-Type": "application/json"}),
        "no route": send("GET", "/absent"),
        "list": send("GET", "/classifiers?limit=5"),
        "examples": send("GET", "/classifiers/known/examples"),
        "add": send("POST", "/classifiers/known/examples", **adapt_form()),
        "metrics": send("GET", "/metrics"),
        "ready": send("GET", "/health/ready"),
        "form broken off": lambda: broken_off(url, "/adapt", True),
        "json broken off": lambda: broken_off(url, "/predict", False),
    }


def within(found: tuple[int, int], allowed: tuple[int, int]) -> bool:
    return all(one <= most for one, most in zip(found, allowed, strict=True))


def test_hundreds_of_requests_leave_nothing_open(server: LiveServer) -> None:
    with http.session() as session, ThreadPoolExecutor(CLIENTS) as pool:
        each = kinds(server.url, session)
        for send in each.values():
            send()
        files, threads = open_files_and_threads(server.process.pid)
        statuses: dict[str, set[int]] = {name: set() for name in each}

        def work(name: str) -> None:
            statuses[name].add(each[name]())

        list(pool.map(work, [name for _ in range(TIMES) for name in each]))
    for name in ("no image", "truncated", "no json"):
        assert statuses[name] == {422}
    assert set.union(*statuses.values()) == {0, 200, 201, 404, 422}
    assert KEPT < TIMES, "fewer than one for each request of a kind"
    allowed = files + KEPT, threads
    deadline = time.monotonic() + 60
    while not within(open_files_and_threads(server.process.pid), allowed):
        assert time.monotonic() < deadline, (open_files_and_threads(server.process.pid), allowed)
        # Idle threads are given up after ten seconds, at the next request.
        http.get(f"{server.url}/classifiers?limit=1")
        time.sleep(0.5)
    metrics = http.get(f"{server.url}/metrics").text
    for gauge in ('comln_pending{unit="requests"}', 'comln_pending{unit="images"}'):
        assert f"\n{gauge} 0.0\n" in metrics


def test_requests_that_run_out_of_time_leave_nothing_open(make_engine: MakeEngine) -> None:
    """In this process, whose backbone can be held: the first batch takes too long, others wait."""
    engine = make_engine(max_queue_seconds=0.3, max_inference_seconds=0.6, max_batch_size=1)
    held = Held(engine)

    def storm() -> set[int]:
        held.hold()
        with http.session() as session, ThreadPoolExecutor(12) as pool:
            tasks = [pool.submit(session.post, f"{url}/predict", **predict_form(RED)) for _ in range(24)]
            statuses = {task.result().status_code for task in tasks}
            held.release()
            wait_until(lambda: session.post(f"{url}/predict", **predict_form(RED)).is_success)
        return statuses

    with served(engine) as url:
        http.post(f"{url}/adapt", **adapt_form(name="known")).raise_for_status()
        assert storm() == {503, 504}
        after_one = open_files_and_threads("self")
        for _ in range(4):
            storm()
        # How many connections and threads are kept depends on how many were needed at one moment;
        # of what the 96 requests opened since, each one, most would be over that.
        allowed = after_one[0] + KEPT, after_one[1] + 12
        wait_until(lambda: within(open_files_and_threads("self"), allowed))
        assert engine.images.pending == 0
