"""Bodies are received in turns of tenants, and those of clients that have left are not: over real connections, with a
server that is stopped while they send.
"""

import signal
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from comln_serve.api.receive.pace import MOST_WAITING
from tests.support import http
from tests.support.image_files import image_bytes
from tests.support.keyed import bearer
from tests.support.live import LiveServer, live_server
from tests.support.messages import adapt_form, predict_form
from tests.support.programs import python
from tests.support.sockets import connect
from tests.support.waiting import wait_until

LARGE = image_bytes(size=(100, 100))
LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
LINGER_IN_QUEUE_S = 0.2  # for what was sent to arrive, on loopback


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bodies")


@pytest.fixture(scope="module")
def server(models_dir: Path, folder: Path) -> Iterator[LiveServer]:
    flags = ("--default-model", "tiny", "--require-keys")
    with live_server(models_dir, folder, *flags) as server:
        yield server
        assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def keys(server: LiveServer, folder: Path) -> dict[str, str]:
    """Of two tenants that have a classifier each."""
    database, made = f"sqlite:///{folder / 'classifiers.db'}", dict[str, str]()
    for tenant in ("many", "one"):
        create = ("keys", "create", "--tenant", tenant, "--database-url", database, "--scope", "adapt")
        made[tenant] = python("-m", "comln_serve.cli", *create).stdout.strip()
        http.post(f"{server.url}/adapt", headers=bearer(made[tenant]), **adapt_form(name="known")).raise_for_status()
    return made


def predict_request(server: LiveServer, key: str, images: Sequence[bytes], **options: object) -> bytes:
    """As an HTTP client sends it."""
    with http.session() as client:
        request = client.build_request(
            "POST", f"{server.url}/predict", headers=bearer(key), **predict_form(*images, **options)
        )
        head = "POST /predict HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        return head.encode() + b"\r\n" + request.read()


@contextmanager
def stopped(server: LiveServer) -> Generator[None, None, None]:
    """The process runs no further in the block, so that what is sent to it waits in the system."""
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
        time.sleep(LINGER_IN_QUEUE_S)
    finally:
        server.process.send_signal(signal.SIGCONT)


def refused_request(server: LiveServer, key: str) -> bytes:
    """One whose body is received and parsed, and then refused: nothing is embedded."""
    return predict_request(server, key, [LARGE] * 2, top_k=0)


def statuses(server: LiveServer, keys: dict[str, str]) -> list[tuple[str, int]]:
    """The tenant of each /predict request and the status of its answer, in the order in which they ended."""
    ids = {key.split("_")[1]: tenant for tenant, key in keys.items()}
    lines = [line for line in server.lines("comln_serve.requests") if line["route"] == "/predict"]
    return [(ids[line["key"]], line["status"]) for line in lines]


@pytest.mark.parametrize("requests", [50, 400], ids=["that wait", "of which most are refused"])
def test_a_tenant_does_not_wait_behind_the_bodies_of_another(
    server: LiveServer, keys: dict[str, str], requests: int
) -> None:
    before = len(statuses(server, keys))
    with ExitStack() as connections:
        with stopped(server):
            for _ in range(requests):
                connections.enter_context(connect(server, refused_request(server, keys["many"])))
            connections.enter_context(connect(server, refused_request(server, keys["one"])))
        wait_until(lambda: len(statuses(server, keys)) == before + requests + 1)
    done = statuses(server, keys)[before:]
    counts = [done.count(("many", 422)), done.count(("many", 429))]
    assert sum(counts) == requests
    assert (counts[1] > 0) == (requests > MOST_WAITING)
    # At each pass of the loop up to 64 connections are accepted, and one body is received.
    assert [tenant for tenant, status in done if status == 422].index("one") < counts[0] // 2 + 5


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the server learns it only once it reads on")
@pytest.mark.parametrize("behind", [b"", LIVE], ids=["alone", "with another request behind"])
def test_nothing_is_done_for_clients_that_have_left(server: LiveServer, keys: dict[str, str], behind: bytes) -> None:
    before, gone = len(statuses(server, keys)), server.log.read_text().count('"client_gone"')
    with stopped(server):
        for _ in range(5):
            connect(server, predict_request(server, keys["many"], [LARGE]) + behind).close()
    assert http.post(f"{server.url}/predict", headers=bearer(keys["one"]), **predict_form(LARGE)).status_code == 200
    wait_until(lambda: len(statuses(server, keys)) > before)
    assert statuses(server, keys)[before:] == [("one", 200)]
    assert server.log.read_text().count('"client_gone"') == gone + 5
