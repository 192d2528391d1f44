"""The server as a process: requests that it finishes when it is stopped, its addresses, and what is not HTTP."""

import errno
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from comln_serve.configuration.settings import Settings
from comln_serve.errors import StartupError
from comln_serve.server import listening
from comln_serve.server.listening import is_loopback, listen, network_address
from comln_serve.server.serve import addresses
from tests.support import http
from tests.support.image_files import colour_support, image_bytes
from tests.support.live import LiveServer, live_server
from tests.support.messages import adapt_form, adapt_json, predict_form
from tests.support.sockets import connect, error_of, read_all
from tests.support.waiting import wait_until

QUERIES = [image_bytes(colour, seed=5) for colour in ((200, 60, 20), (20, 200, 60), (90, 90, 90))]


@pytest.fixture(scope="module")
def server(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("live")
    with live_server(models_dir, folder, "--default-model", "tiny") as server:
        yield server


def predictions(server: LiveServer, classifier: str) -> Any:
    answer = http.post(f"{server.url}/predict", **predict_form(*QUERIES, classifier=classifier, top_k=3))
    assert answer.status_code == 200, answer.text
    return answer.json()["predictions"]


class Upload:
    """A request sent in two halves over a bare socket."""

    def __init__(self, server: LiveServer, path: str, body: bytes) -> None:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        self._rest = body[len(body) // 2 :]
        self.socket = connect(server, head.encode() + body[: len(body) // 2])

    def finish(self) -> tuple[int, Any]:
        """Send the rest; status and JSON of the answer."""
        self.send_rest()
        return self.read()

    def send_rest(self) -> None:
        self.socket.sendall(self._rest)

    def read(self) -> tuple[int, Any]:
        """Status and JSON of the answer, after which the server has to close the connection."""
        head, _, body = read_all(self.socket).partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)


def adapt_body() -> bytes:
    return json.dumps(adapt_json(colour_support(), name="drained")["json"]).encode()


def test_sigterm_lets_running_requests_finish(models_dir: Path, tmp_path: Path) -> None:
    with live_server(models_dir, tmp_path, "--default-model", "tiny") as server:
        upload = Upload(server, "/adapt", adapt_body())
        # The server has taken the upload up once another connection has been answered after it.
        assert http.get(f"{server.url}/health/live").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Shutting down" in server.log.read_text())
        with pytest.raises(httpx2.TransportError):
            http.get(f"{server.url}/health/live")
        assert server.process.poll() is None
        status, made = upload.finish()
        assert status == 201
        assert server.process.wait(timeout=30) == 0
    assert "Traceback" not in server.log.read_text()
    with live_server(models_dir, tmp_path, "--default-model", "tiny") as server:
        assert http.get(f"{server.url}/classifiers/drained").json()["id"] == made["id"]


def test_sigterm_gives_running_requests_a_limited_time(models_dir: Path, tmp_path: Path) -> None:
    with live_server(models_dir, tmp_path, "--drain-seconds", "1") as server:
        upload = Upload(server, "/adapt", adapt_body())
        assert http.get(f"{server.url}/health/live").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        answer = upload.read()
        assert server.process.wait(timeout=20) == 0
    status, body = answer
    assert status == 503
    assert body["error"]["code"] == "not_ready"
    assert "did not finish this request in time" in body["error"]["message"]
    assert "Traceback" not in server.log.read_text()
    (line,) = [line for line in server.log.read_text().splitlines() if "POST /adapt" in line]
    assert json.loads(line)["status"] == 503


@pytest.mark.slow
def test_readiness_ends_before_the_server_stops_accepting(models_dir: Path, tmp_path: Path) -> None:
    """A load balancer that asks `/health/ready` has time to turn away, and nobody is refused."""
    flags = ("--default-model", "tiny", "--drain-delay-seconds", "3")
    with live_server(models_dir, tmp_path, *flags) as server, http.session() as kept:
        kept.post(f"{server.url}/adapt", **adapt_form(name="known")).raise_for_status()
        assert "connection" not in kept.get(f"{server.url}/health/ready").headers
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: http.get(f"{server.url}/health/ready").status_code == 503)
        assert time.monotonic() - began < 1.5
        answer = http.get(f"{server.url}/health/ready")
        assert answer.json()["error"]["code"] == "not_ready"
        assert "stopping" in answer.json()["error"]["message"]
        assert http.get(f"{server.url}/health/live").status_code == 200
        answer = kept.post(f"{server.url}/predict", **predict_form(*QUERIES))
        assert answer.status_code == 200
        assert answer.headers["connection"] == "close"
        assert server.process.poll() is None
        assert server.process.wait(timeout=30) == 0
        assert time.monotonic() - began >= 3
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]])
def test_the_delay_can_be_skipped(models_dir: Path, tmp_path: Path, signals: list[signal.Signals]) -> None:
    with live_server(models_dir, tmp_path, "--drain-delay-seconds", "600") as server:
        for number in signals:
            server.process.send_signal(number)
            time.sleep(0.3)  # a signal that finds another of its number pending is lost
        assert server.process.wait(timeout=30) == 0
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_a_thread_that_hangs_does_not_keep_the_process(models_dir: Path, tmp_path: Path) -> None:
    """What is stored is safe; nothing else is worth waiting for."""
    hangs = (
        "import sys, time\n"
        "from comln_serve.cli import main\n"
        "from comln_serve.engine.engine import Engine\n"
        "Engine.adapt = lambda *_, **__: time.sleep(600)\n"
        "sys.exit(main())\n"
    )
    with live_server(models_dir, tmp_path, "--drain-seconds", "1", program=["-c", hangs]) as server:
        upload = Upload(server, "/adapt", adapt_body())
        upload.send_rest()
        wait_until(lambda: 'unit="requests"} 1.0' in http.get(f"{server.url}/metrics").text)
        server.process.send_signal(signal.SIGTERM)
        assert upload.read()[0] == 503
        assert server.process.wait(timeout=30) == 1
    assert "giving up what still runs" in server.log.read_text()


@pytest.mark.slow
def test_port_0_picks_a_free_one_and_says_which_and_a_public_address_is_warned_of(
    models_dir: Path, tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path / 'classifiers.db'}"
    log = tmp_path / "log"
    with log.open("wb") as output:
        flags = ["--models-dir", models_dir, "--host", "0.0.0.0", "--port", "0", "--database-url", database]
        command = [sys.executable, "-m", "comln_serve.cli", "--provider", "cpu", *flags]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: "the page is at" in log.read_text())
        found = re.search(r"http://localhost:(\d+)/", log.read_text())
        assert found is not None
        ready = f"http://127.0.0.1:{found[1]}/health/ready"
        wait_until(lambda: http.get(ready).status_code == 200)
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0
    assert warned_of_no_authentication(log)


def warned_of_no_authentication(log: Path) -> bool:
    lines = map(json.loads, log.read_text().splitlines())
    return any(line["level"] == "warning" and "WITHOUT AUTHENTICATION" in line["message"] for line in lines)


def test_a_local_address_is_not_warned_of(server: LiveServer) -> None:
    assert not warned_of_no_authentication(server.log)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.0.2.7", False),
        ("2001:db8::1", False),
        ("absent.invalid", False),
        ("x" * 500, False),
    ],
)
def test_which_addresses_are_local(host: str, local: bool) -> None:
    assert is_loopback(host) == local


@pytest.mark.parametrize(
    ("host", "found", "expected"),
    [
        ("0.0.0.0", "192.0.2.7", "http://localhost:{port}/ and, on the network, at http://192.0.2.7:{port}/"),
        ("0.0.0.0", None, "http://localhost:{port}/"),
        ("127.0.0.1", "192.0.2.7", "http://127.0.0.1:{port}/"),
    ],
)
def test_where_the_page_is(host: str, found: str | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A colleague is told of an address that leads to this machine, which localhost does not."""
    monkeypatch.setattr("comln_serve.server.serve.network_address", lambda _family: found)
    sockets = listen(host, 0)
    try:
        assert addresses(Settings(host=host), sockets) == expected.format(port=sockets[0].getsockname()[1])
    finally:
        for opened in sockets:
            opened.close()


@pytest.mark.parametrize(("system", "expected"), [("posix", 1), ("nt", 0)])
def test_a_port_that_another_process_listens_on_is_not_taken(
    system: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows, the option that lets a server start again at once would let two of them share a port."""
    monkeypatch.setattr(listening, "os", SimpleNamespace(name=system))
    for opened in listen("127.0.0.1", 0):
        with opened:
            assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == expected


def test_why_a_port_cannot_be_taken_is_said_in_the_words_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows numbers errors of sockets so that `os.strerror` does not know them."""

    def refuse(*_: object) -> None:
        raise OSError(10048, "Only one usage of each socket address is normally permitted")

    monkeypatch.setattr(listening, "_listen", refuse)
    with pytest.raises(StartupError, match="port 8000: only one usage of each socket address"):
        listen("127.0.0.1", 8000)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_address_for_other_machines(family: int) -> None:
    found = network_address(family)
    if found is not None:
        assert not is_loopback(found)
        with socket.socket(family, socket.SOCK_STREAM) as own:
            own.bind((found, 0))


def test_a_machine_without_a_network_has_no_address_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    assert network_address(socket.AF_INET) is None


def test_a_client_that_breaks_off_leaves_nothing(server: LiveServer) -> None:
    for path in ("/adapt", "/predict"):
        Upload(server, path, adapt_body()).socket.close()
    http.post(f"{server.url}/adapt", **adapt_form(name="after")).raise_for_status()
    listed = http.get(f"{server.url}/classifiers").json()["classifiers"]
    assert "drained" not in [item["name"] for item in listed]
    assert predictions(server, "after")
    assert "Traceback" not in server.log.read_text()


def test_options_in_chunks_are_read_from_the_first_one_on(server: LiveServer) -> None:
    """A request to adapt again may have no body, which only the first chunk shows."""
    http.post(f"{server.url}/adapt", **adapt_form(name="chunked")).raise_for_status()
    chunks = iter([b'{"hor', b'izon": 2}'])
    headers = {"Content-Type": "application/json"}
    again = http.post(f"{server.url}/classifiers/chunked/adapt", content=chunks, headers=headers)
    assert again.request.headers["Transfer-Encoding"] == "chunked"
    assert (again.status_code, again.json()["horizon"]) == (201, 2.0), again.text


def test_head_is_answered_as_get_without_the_body(server: LiveServer) -> None:
    """Load balancers and uptime checks send it. A route of its own is counted and logged as such."""
    http.post(f"{server.url}/adapt", **adapt_form(name="headed")).raise_for_status()
    paths = ["/", "/docs", "/health/live", "/limits", "/classifiers/headed", "/classifiers/headed/export", "/absent"]
    with httpx2.Client(base_url=server.url) as client:  # one connection: nothing may follow an answer
        for path in paths:
            got, headed = client.get(path), client.head(path)
            assert (headed.status_code, headed.content) == (got.status_code, b"")
            for name in ("content-type", "content-length", "transfer-encoding"):
                assert headed.headers.get(name) == got.headers.get(name), path
        assert client.head("/predict").status_code == 405
        assert 'method="HEAD",route="/limits",status="200"' in client.get("/metrics").text


@pytest.mark.parametrize(
    "request_",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"POST /adapt HTTP/1.1\r\n\xff: x\r\n\r\n",
        b"POST /adapt HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /adapt HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"POST /adapt HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    ],
)
def test_what_is_not_http_is_refused(server: LiveServer, request_: bytes) -> None:
    status, error, head = error_of(read_all(connect(server, request_)))
    assert (status, error["code"]) in {(400, "malformed_http"), (422, "invalid_request")}
    assert b"\r\nx-request-id: " + error["request_id"].encode() in head
    assert error["request_id"] in server.log.read_text()
    assert b"\r\nconnection: close" in head
    assert b"\r\nx-content-type-options: nosniff" in head
    if status == 400:
        counted = http.get(f"{server.url}/metrics").text
        assert 'comln_requests_total{method="other",route="unmatched",status="400"}' in counted
    assert http.get(f"{server.url}/health/ready").status_code == 200
    assert "Traceback" not in server.log.read_text()


def test_only_its_own_host_names_and_pages_are_answered(server: LiveServer) -> None:
    """As it is started without settings; probes of a container come to its address."""
    for host, status in (("localhost", 200), ("127.0.0.1", 200), ("evil.example", 421)):
        answer = http.get(f"{server.url}/classifiers", headers={"Host": host})
        assert answer.status_code == status
    answer = http.post(f"{server.url}/adapt", headers={"Origin": "https://evil.example"}, **adapt_form())
    assert answer.status_code == 403
    page = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
    assert http.post(f"{server.url}/adapt", headers=page, **adapt_form()).status_code == 201
    assert server.url.startswith("http://127.0.0.1:")


@pytest.mark.slow
@pytest.mark.parametrize("log_format", ["json", "text"])
def test_every_line_of_the_log_has_one_format(models_dir: Path, tmp_path: Path, log_format: str) -> None:
    """uvicorn's lines included; a request has one line, not another from uvicorn."""
    with live_server(models_dir, tmp_path, "--log-format", log_format) as server:
        http.get(f"{server.url}/models", headers={"X-Request-ID": "find-me"}).raise_for_status()
        http.get(f"{server.url}/nothing?secret=1")
    written = server.log.read_text().splitlines()
    assert any("ready: the page is at" in line for line in written)
    assert sum("/models" in line for line in written) == 1
    assert sum("find-me" in line for line in written) == 1
    assert not any("nothing" in line or "secret" in line for line in written)
    if log_format == "json":
        for line in written:
            assert {"time", "level", "logger", "message"} <= set(json.loads(line))
    else:
        pattern = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z (INFO|WARNING) +[\w.]+: .+")
        assert all(pattern.fullmatch(line) for line in written), written
