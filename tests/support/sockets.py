"""Bare connections to a server, for requests that no HTTP client would send."""

import json
import socket
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from tests.support import http
from tests.support.image_files import image_bytes
from tests.support.live import LiveServer
from tests.support.messages import predict_form


def connect(server: LiveServer, sent: bytes = b"") -> socket.socket:
    """A connection over which `sent` has been sent."""
    url = urlsplit(server.url)
    connection = socket.create_connection((url.hostname or "", url.port or 0), timeout=60)
    connection.sendall(sent)
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes the connection, as it has to.

    A byte sent to a server that has closed is answered by a reset; what came before it was read.
    """
    received = b""
    with connection, suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            received += piece
    return received


def error_of(answer: bytes) -> tuple[int, dict[str, Any], bytes]:
    """Status, error and head (in lower case) of an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    error: dict[str, Any] = json.loads(body)["error"]
    return int(head.split()[1]), error, head.lower()


def predicts(server: LiveServer) -> bool:
    """Whether the server predicts with its classifier `known`."""
    return http.post(f"{server.url}/predict", **predict_form(image_bytes())).status_code == 200


def pending(server: LiveServer, unit: str) -> float:
    """How many requests, images or bytes the server says it has under way."""
    lines = http.get(f"{server.url}/metrics").text.splitlines()
    (line,) = [line for line in lines if line.startswith(f'comln_pending{{unit="{unit}"}}')]
    return float(line.split()[-1])
