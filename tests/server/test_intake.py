"""Clients that send slowly, or more than the server has room for, over bare sockets.

The server answers them and closes the connection; other clients are served meanwhile.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from comln_serve.api.errors import STATUS
from comln_serve.configuration.settings import Settings
from comln_serve.errors import ErrorCode
from tests.support import http
from tests.support.image_files import image_bytes
from tests.support.live import LiveServer, live_server
from tests.support.messages import adapt_form, predict_form
from tests.support.sockets import connect, error_of, pending, predicts, read_all
from tests.support.waiting import wait_until

SECONDS = 2  # max_receive_seconds of the servers here
ROOM = 1_000_000  # max_pending_bytes
HEAD = (
    b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
    b"Content-Type: multipart/form-data; boundary=b\r\n\r\n"
)


@pytest.fixture(scope="module")
def server(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Few requests at a time, little room, little patience; with a classifier `known`."""
    room = f"--max-pending-bytes {ROOM} --max-body-bytes {ROOM} --max-json-bytes {ROOM}"
    flags = f"--default-model tiny --max-receive-seconds {SECONDS} --max-pending-requests 4 {room}"
    with live_server(models_dir, tmp_path_factory.mktemp("intake"), *flags.split()) as server:
        http.post(f"{server.url}/adapt", **adapt_form(name="known")).raise_for_status()
        yield server


def test_a_body_that_takes_too_long_is_answered_408_and_the_connection_closed(server: LiveServer) -> None:
    """Not when it falls silent, but when it takes too long: it sends a byte now and then."""
    connection = connect(server, HEAD % 1000 + b"--b\r\n")
    connection.settimeout(0.2)
    answer = b""
    while not answer:
        connection.sendall(b"x")
        try:
            answer = connection.recv(65536)
        except TimeoutError:
            continue
    connection.settimeout(60)
    status, error, head = error_of(answer + read_all(connection))
    assert (status, error["code"]) == (408, "receive_timeout")
    assert error["detail"] == {"allowed_seconds": SECONDS}
    assert f"{SECONDS} s" in error["message"]
    assert b"connection: close" in head
    assert pending(server, "bytes") == 0
    assert error["request_id"] in server.log.read_text()


def test_many_slow_senders_keep_no_other_client_out(server: LiveServer) -> None:
    """Ten times as many as may be worked on at a time."""
    connections = [connect(server, HEAD % 1000 + b"--b\r\n") for _ in range(40)]
    wait_until(lambda: pending(server, "bytes") == 40 * 5)
    assert http.get(f"{server.url}/health/ready").status_code == 200
    assert predicts(server)
    assert pending(server, "requests") == 0
    assert {error_of(read_all(connection))[0] for connection in connections} == {408}
    assert pending(server, "bytes") == 0


def test_bytes_count_when_they_arrive_not_when_they_are_announced(server: LiveServer) -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="images"; filename="f"\r\n\r\n'
    half = part + b"x" * (ROOM // 2 - len(part))
    with connect(server, HEAD % ROOM), connect(server, HEAD % ROOM):
        assert predicts(server)
    with connect(server, HEAD % ROOM + half):
        wait_until(lambda: pending(server, "bytes") == len(half))
        assert predicts(server)
        with connect(server, HEAD % ROOM + half) as second:
            wait_until(lambda: pending(server, "bytes") == 2 * len(half))
            answer = http.post(f"{server.url}/predict", **predict_form(image_bytes()))
            assert answer.status_code == 429
            assert answer.json()["error"]["code"] == "overloaded"
            assert answer.json()["error"]["detail"]["limit"] == ROOM
            assert "bytes are under way" in answer.json()["error"]["message"]
            assert int(answer.headers["retry-after"]) >= 1
            assert http.get(f"{server.url}/health/ready").status_code == 200
            second.sendall(b"x")
            assert second.recv(12) == b"HTTP/1.1 429"
    wait_until(lambda: pending(server, "bytes") == 0)
    assert predicts(server)


def test_chunked_bodies_count_as_they_arrive(server: LiveServer) -> None:
    head = (HEAD % 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    chunk = b"5\r\n--b\r\n\r\n"
    with connect(server, head + chunk):
        wait_until(lambda: pending(server, "bytes") == 5)
    wait_until(lambda: pending(server, "bytes") == 0)


def test_a_head_that_does_not_come_is_answered_408(server: LiveServer) -> None:
    """A connection over which nothing is sent is closed without an answer, and that of a client that has left is
    nothing to report.
    """
    before = server.log.read_text().count("receive_timeout")
    connect(server, b"GET /health/live HTT").close()
    silent = connect(server)
    begun = [connect(server, sent) for sent in (b"GET /health/live HTT", b"GET / HTTP/1.1\r\nHost: lo")]
    assert read_all(silent) == b""
    for connection in begun:
        status, error, head = error_of(read_all(connection))
        assert (status, error["code"]) == (408, "receive_timeout")
        assert b"connection: close" in head
        assert b"x-request-id: " + error["request_id"].encode() in head
    assert server.log.read_text().count("receive_timeout") == before + len(begun)


def test_a_later_head_on_a_kept_connection_has_to_come_in_time_too(server: LiveServer) -> None:
    get = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
    with connect(server, get + b"\r\n") as connection:
        assert b" 200 OK" in connection.recv(65536)
        connection.sendall(get)
        status, error, _ = error_of(read_all(connection))
    assert (status, error["code"]) == (408, "receive_timeout")


def test_the_body_of_a_refused_request_is_received_for_a_limited_time(server: LiveServer) -> None:
    """A client may go on after its answer, as most do; not for longer than for any body."""
    connection = connect(server, HEAD.replace(b"/predict", b"/absent") % 10**9)
    assert b" 404 " in connection.recv(65536)
    began = time.monotonic()
    with pytest.raises(OSError, match=r"Broken pipe|reset by peer"):  # noqa: PT012
        while time.monotonic() < began + 60:
            connection.sendall(b"x" * 100)
            time.sleep(0.1)
    connection.close()
    assert predicts(server)


def test_a_slow_answer_is_not_a_slow_request(server: LiveServer) -> None:
    """Connections in use, and bodies that are there, are not hurried: uvicorn's own keep-alive."""
    with http.session() as kept:
        for _ in range(3):
            assert kept.get(f"{server.url}/health/live").status_code == 200
            time.sleep(0.75 * SECONDS)
        assert kept.post(f"{server.url}/predict", **predict_form(image_bytes())).status_code == 200
    assert "Traceback" not in server.log.read_text()


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"max_body_bytes \(2000\) must not exceed max_pending_byt"):
        Settings(max_body_bytes=2000, max_pending_bytes=1000)
    assert STATUS[ErrorCode.RECEIVE_TIMEOUT] == 408
