"""Attacks on the level of the connection, over bare sockets: requests sent ahead, answers that are not read, heads
without end. The server's memory stays bounded, and it answers other clients meanwhile.
"""

import re
import resource
import socket
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from comln_serve.api.routes.export import MOST_EXPORTS
from comln_serve.server.protocol import MOST_FIELDS, MOST_HEAD_BYTES
from tests.support import http
from tests.support.image_files import image_bytes
from tests.support.live import LiveServer, live_server
from tests.support.messages import adapt_form, predict_form
from tests.support.processes import memory, needs_proc
from tests.support.sockets import connect, error_of, pending, predicts, read_all
from tests.support.tiny import tiny_config, write_bundle
from tests.support.waiting import wait_until

SECONDS = 3  # max_send_seconds of the server
MOST_GROWTH = 300 * 10**6
PATIENCE = 3  # seconds in which others have to be answered during an attack
LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = LIVE[:-2] + b"Connection: close\r\n\r\n"


@pytest.fixture(scope="module")
def server(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Beside the usual bundles `wide`, whose export is larger than what sockets buffer."""
    folder = tmp_path_factory.mktemp("connections")
    models = folder / "models"
    models.mkdir()
    (models / "tiny").symlink_to(models_dir / "tiny")
    config = tiny_config()
    wide = config.backbone.model_copy(update={"channels": 256})
    write_bundle(models / "wide", config.model_copy(update={"backbone": wide}))
    flags = ("--default-model", "tiny", "--max-send-seconds", str(SECONDS))
    with live_server(models, folder, *flags) as server:
        http.post(f"{server.url}/adapt", **adapt_form(name="known")).raise_for_status()
        made = http.post(f"{server.url}/adapt", **adapt_form(name="wide", model="wide"))
        made.raise_for_status()
        yield server


@contextmanager
def harmless(server: LiveServer) -> Generator[None, None, None]:
    """Check that what is done in the block takes little memory and keeps nobody waiting."""
    before, logged = memory(server.process.pid), server.log.stat().st_size
    grown, waited = [0], [0.0]
    over = False

    def watch() -> None:
        with http.session() as client:
            last = False
            while not last:
                last = over
                began = time.monotonic()
                assert client.get(f"{server.url}/health/live").status_code == 200
                waited.append(time.monotonic() - began)
                began = time.monotonic()
                form = predict_form(image_bytes())
                assert client.post(f"{server.url}/predict", **form).status_code == 200
                waited.append(time.monotonic() - began)
                grown.append(memory(server.process.pid) - before)
                time.sleep(0.05)

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            yield
        finally:
            over = True
        watching.result()
    print(f"grown by {max(grown) / 1e6:.0f} MB, others waited {max(waited):.2f} s at most")
    assert max(grown) < MOST_GROWTH
    assert max(waited) < PATIENCE
    assert b"Traceback" not in server.log.read_bytes()[logged:]


def statuses_of(answers: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d+) ", answers)]


def send_all(connections: list[socket.socket], data: bytes, seconds: float) -> int:
    """Send it over each connection at once, and give up where the server reads no more."""

    def send(connection: socket.socket) -> int:
        sent, deadline = 0, time.monotonic() + seconds
        connection.settimeout(0.2)
        with suppress(ConnectionError):
            while sent < len(data) and time.monotonic() < deadline:
                with suppress(TimeoutError):
                    sent += connection.send(data[sent : sent + 2**16])
        return sent

    with ThreadPoolExecutor(len(connections)) as pool:
        return sum(pool.map(send, connections))


def is_dropped(connection: socket.socket) -> bool:
    """Whether the server has let the connection go, answers read or not."""
    try:
        return connection.send(b"x") == 0
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("request_", [LIVE, b"GET / HTTP/1.1\r\n\r\n"], ids=["probe", "short"])
def test_clients_that_never_read_answers_are_dropped(server: LiveServer, request_: bytes) -> None:
    connections = [connect(server) for _ in range(10)]
    with harmless(server):
        send_all(connections, request_ * (8_000_000 // len(request_)), seconds=3)
        wait_until(lambda: all(map(is_dropped, connections)))
    for connection in connections:
        connection.close()
    assert predicts(server)


def test_pipelined_requests_are_answered_in_order(server: LiveServer) -> None:
    """Far more than are parsed at once, with bodies between them."""
    body = b'{"images": [], "classifier": "known"}'
    post = (
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    ) + body
    connection = connect(server)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(connection.sendall, (LIVE + post) * 500 + LAST)
        answers = read_all(connection)
        sending.result()
    assert statuses_of(answers) == [200, 422] * 500 + [200]


@pytest.mark.parametrize("route", ["/health/live", "/limits", "/classifiers/known/export?format=onnx"])
def test_the_head_of_an_answer_comes_with_its_body(server: LiveServer, route: str) -> None:
    with connect(server) as client:
        for _ in range(3):
            client.sendall(f"GET {route} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            first = client.recv(2**20)
            head, _, body = first.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert body
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            read = len(body)
            while read < length:
                read += len(client.recv(2**20))


def test_the_interim_answer_is_sent_before_the_body(server: LiveServer) -> None:
    with connect(server) as client:
        head = (
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Type: application/json\r\n"
        )
        client.sendall(head + b"Content-Length: 2\r\nConnection: close\r\n\r\n")
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"{}")
        assert read_all(client).startswith(b"HTTP/1.1 422 ")


def test_a_connection_is_kept_between_requests(server: LiveServer) -> None:
    with connect(server) as connection:
        for _ in range(3):
            connection.sendall(LIVE)
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(65536)
            assert statuses_of(answer) == [200]


@needs_proc
def test_connections_for_which_no_descriptor_is_free_wait_and_hardly_fill_the_log(server: LiveServer) -> None:
    process = server.process.pid
    limits = resource.prlimit(process, resource.RLIMIT_NOFILE)
    opened = max(int(file.name) for file in Path(f"/proc/{process}/fd").iterdir())
    with ExitStack() as stack:
        resource.prlimit(process, resource.RLIMIT_NOFILE, (opened + 5, limits[1]))
        try:
            connections = [stack.enter_context(connect(server)) for _ in range(100)]
            wait_until(lambda: len(server.lines("asyncio")) >= 2)
        finally:
            resource.prlimit(process, resource.RLIMIT_NOFILE, limits)
        for connection in connections:
            connection.sendall(LAST)
        assert {read_all(connection).split(b"\r\n")[0] for connection in connections} == {b"HTTP/1.1 200 OK"}
    times = [datetime.fromisoformat(line["time"]) for line in server.lines("asyncio")]
    assert all(later - earlier > timedelta(seconds=0.9) for earlier, later in pairwise(times))  # asyncio's pause


def head(field: bytes, size: int) -> bytes:
    return LIVE[:-2] + field * (size // len(field))


@pytest.mark.parametrize(
    "sent",
    [
        head(b"X: y\r\n", 20_000_000),
        head(b"X: " + b"y" * 2000 + b"\r\n", 20_000_000),
        LIVE[:-2] + b"X: " + b"y" * 100_000_000,
        LIVE[:-2] + b"y" * 20_000_000,
        b"GET /" + b"y" * 20_000_000,
        LIVE[:-2] + b"X: y\r\n" * MOST_FIELDS + b"\r\n",
        LIVE[:-2] + b"X: " + b"y" * (MOST_HEAD_BYTES + 4096) + b"\r\n\r\n",
    ],
    ids=["lines", "long lines", "value", "name", "path", "fields", "bytes"],
)
def test_a_head_without_end_is_431(server: LiveServer, sent: bytes) -> None:
    connection = connect(server)
    with harmless(server):
        send_all([connection], sent, seconds=60)
        connection.settimeout(60)
        status, error, answered = error_of(read_all(connection))
    assert (status, error["code"]) == (431, "head_too_large")
    assert error["detail"] == {"allowed_bytes": MOST_HEAD_BYTES, "allowed_fields": MOST_FIELDS}
    assert b"connection: close" in answered
    assert error["request_id"] in server.log.read_text()


def test_a_head_of_the_allowed_size_is_answered(server: LiveServer) -> None:
    fields = b"X: y\r\n" * (MOST_FIELDS - 3)
    long = b"Y: " + b"y" * (MOST_HEAD_BYTES - 1000) + b"\r\n"
    answer = read_all(connect(server, LAST[:-2] + fields + long + b"\r\n"))
    assert answer.startswith(b"HTTP/1.1 200")


CHUNKED = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "endless",
    [b"0\r\n" + b"X: y\r\n" * 1_000_000, b"0\r\nX: " + b"y" * 20_000_000, b"1;" + b"x" * 20_000_000],
    ids=["trailer", "value", "extension"],
)
def test_endless_trailers_and_chunk_extensions_are_refused(server: LiveServer, endless: bytes) -> None:
    """In the trailer of a chunked body, or what a chunk says of itself. Refused is what comes
    first: the Content-Type that is missing, or the size.
    """
    connection = connect(server)
    with harmless(server):
        send_all([connection], CHUNKED + endless, seconds=60)
        connection.settimeout(60)
        with suppress(ConnectionError):
            assert read_all(connection).split()[1] in (b"415", b"431")


@pytest.mark.slow
@pytest.mark.parametrize("route", [b"/predict", b"/nothing"])
def test_bodies_in_tiny_chunks_keep_nobody_waiting(server: LiveServer, route: bytes) -> None:
    """A chunk of a byte costs as much time as one of thousands. Also where the body was refused."""
    head = CHUNKED.replace(b"/predict", route)[:-2] + b"Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    connections = [connect(server, head) for _ in range(20)]
    with harmless(server):
        send_all(connections, b"1\r\nx\r\n" * 1_000_000, seconds=4)
    for connection in connections:
        connection.close()


def test_trailers_do_not_count_as_headers(server: LiveServer) -> None:
    """They come after the request's key has been checked: they must not count as headers."""
    answer = read_all(connect(server, CHUNKED + b"1\r\nx\r\n0\r\nContent-Type: application/json\r\n\r\n" + LAST))
    assert statuses_of(answer) == [415, 200]


@pytest.mark.slow
def test_an_upgrade_that_would_lose_the_body_is_refused(server: LiveServer) -> None:
    """As curl --http2 and Java's HttpClient ask for it. A request without a body is answered as if it had not asked."""
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    body = b'{"images": ["eA=="], "classifier": "known"}'
    post = LIVE.replace(b"GET /health/live", b"POST /predict")[:-2] + b"Content-Type: application/json\r\n"
    status, error, _ = error_of(read_all(connect(server, post + upgrade + b"Content-Length: 43\r\n\r\n" + body)))
    assert (status, error["code"]) == (400, "malformed_http")
    assert "--http1.1" in error["message"]
    for nothing in (b"", b"Content-Length: 0\r\n"):
        assert statuses_of(read_all(connect(server, LIVE[:-2] + upgrade + nothing + b"\r\n" + LAST)))[0] == 200
    logged = server.log.read_text()
    assert "Unsupported upgrade" not in logged
    assert "WebSocket" not in logged


def test_a_request_with_two_hosts_is_refused(server: LiveServer) -> None:
    for second in (b"Host: localhost", b"HOST: other.example", b"Host:"):
        answer = read_all(connect(server, LIVE[:-2] + second + b"\r\n\r\n" + LAST))
        assert statuses_of(answer) == [400]
        status, error, head = error_of(answer)
        assert (status, error["code"]) == (400, "malformed_http")
        assert "Host" in error["message"]
        assert b"connection: close" in head


def test_a_content_length_with_leading_zeros_is_read(server: LiveServer) -> None:
    body = b'{"images": [], "classifier": "known"}'
    post = LAST.replace(b"GET /health/live", b"POST /predict")[:-2]
    post += b"Content-Type: application/json\r\nContent-Length: %05000d\r\n\r\n" % len(body)
    status, error, _ = error_of(read_all(connect(server, post + body)))
    assert (status, error["detail"]) == (422, {"received_images": 0})


def export_of(server: LiveServer, fields: bytes = b"") -> socket.socket:
    """A connection that has asked for an export, and has a small window. `fields`: further ones of the head."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
    connection.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
    connection.settimeout(60)
    connection.sendall(LAST.replace(b"/health/live", b"/classifiers/wide/export")[:-2] + fields + b"\r\n")
    return connection


def export_status(server: LiveServer) -> int:
    return http.get(f"{server.url}/classifiers/wide/export").status_code


def test_within_an_answer_no_other_one_is_sent(server: LiveServer) -> None:
    """The client would take it for a part of the first one's body."""
    connection = export_of(server, b"Transfer-Encoding: chunked\r\n")
    received = connection.recv(1000)
    connection.sendall(b"not a chunk\r\n\r\n")
    received += read_all(connection)
    assert statuses_of(received) == [200]
    assert len(received) < 6_000_000, "the server has closed the connection"


@pytest.mark.slow
@pytest.mark.parametrize("reads", [0, 4000], ids=["unread", "trickled"])
def test_exports_that_are_hardly_read_keep_no_others_out_and_are_dropped(server: LiveServer, reads: int) -> None:
    """Where it reads something it is 50 kB a second or so, of the 85 needed."""
    with ExitStack() as open_:
        connections = [open_.enter_context(export_of(server)) for _ in range(2 * MOST_EXPORTS)]
        wait_until(lambda: pending(server, "bytes") > 2**22)

        def granted_beside_one_that_waits() -> bool:
            """On a busy machine those opened above may be dropped before the first try: then there is another."""
            if not pending(server, "bytes"):
                connections.append(open_.enter_context(export_of(server)))
            return export_status(server) == 200 and pending(server, "bytes") > 0

        # Others are refused while the last of them is being made, not while it waits to be read.
        wait_until(granted_beside_one_that_waits)
        assert predicts(server)

        def given_up() -> bool:
            for connection in connections if reads else ():
                with suppress(OSError):
                    connection.recv(reads)
            time.sleep(0.05)
            return pending(server, "bytes") == 0

        wait_until(given_up)


@pytest.mark.slow
def test_a_slow_download_finishes(server: LiveServer) -> None:
    """It takes longer than a client may stand still."""
    whole = http.get(f"{server.url}/classifiers/wide/export").content
    assert len(whole) > 6_000_000, "more than sockets buffer, else nothing is slow here"
    began = time.monotonic()
    received = bytearray()
    with export_of(server) as connection:
        while piece := connection.recv(2**17):
            received += piece
            time.sleep(2 * SECONDS / (len(whole) / len(piece)))
    assert time.monotonic() - began > 1.5 * SECONDS
    assert bytes(received).partition(b"\r\n\r\n")[2] == whole
