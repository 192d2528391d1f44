"""The real server as a process of its own, for tests that need one."""

import contextlib
import json
import secrets
import ssl
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any

import httpx2

from tests.support import http

START_SECONDS = 120  # the first start compiles the flow


@dataclass(frozen=True)
class LiveServer:
    """A running `comln-serve`."""

    process: "subprocess.Popen[bytes]"
    url: str
    log: Path

    def lines(self, logger: str) -> list[dict[str, Any]]:
        """What one of its loggers has logged, but for a line that is being written."""
        text = self.log.read_text()
        whole = text[: text.rfind("\n") + 1].splitlines()
        lines = [json.loads(line) for line in whole if line.startswith("{")]
        return [line for line in lines if line["logger"] == logger]


def free_port() -> int:
    """A TCP port nobody listens on right now, below those that the system gives to outgoing connections: another test's
    might take one of those before the server that is being started does.
    """
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def live_server(
    models_dir: Path,
    folder: Path,
    *flags: str,
    executable: str = sys.executable,
    program: Sequence[str] = ("-m", "comln_serve.cli"),
    environment: Mapping[str, str] | None = None,
    verify: ssl.SSLContext | None = None,
    database_url: str | None = None,
) -> Generator[LiveServer, None, None]:
    """Start a server on a free port, its database by default in `folder`; wait until it is ready.

    Stops it at the end, unless the test already did.

    Args:
        verify: how to check the certificate of a server that is told to serve https.
    """
    port = free_port()
    database_url = database_url or f"sqlite:///{folder / 'classifiers.db'}"
    command = [
        executable,
        *program,
        "--models-dir",
        str(models_dir),
        "--port",
        str(port),
        "--database-url",
        database_url,
        "--provider",
        "cpu",
        *flags,
    ]
    url = f"{'http' if verify is None else 'https'}://127.0.0.1:{port}"
    with running(command, url, folder / f"server-{port}.log", environment, verify) as server:
        yield server


@contextmanager
def running(
    command: Sequence[str],
    url: str,
    log: Path,
    environment: Mapping[str, str] | None = None,
    verify: ssl.SSLContext | None = None,
    cwd: Path | None = None,
) -> Generator[LiveServer, None, None]:
    """Start a server by a command; wait until it is ready. Stop it at the end if it still runs."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=cwd)
    server = LiveServer(process, url, log)
    try:
        _wait_until_ready(server, verify)
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(server: LiveServer, verify: ssl.SSLContext | None) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            answer = http.get(f"{server.url}/health/ready", timeout=5, verify=verify or http.NO_CERTIFICATES)
            if answer.status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"the server did not become ready:\n{server.log.read_text()}")
