"""A server in its environment: start, ask, load, and what its processes use."""

import contextlib
import http.client
import os
import signal
import subprocess
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import processes
from benchmarks.load import Outcome, from_another_process
from benchmarks.peers.peer import Peer, Request, Setting, environment, mlserver_files
from benchmarks.publishing import ROOT

START_SECONDS = 120
_RESUME_SECONDS = 0.3


class Running:
    """A server that runs."""

    def __init__(self, peer: Peer, process: "subprocess.Popen[bytes]", url: str, folder: Path) -> None:
        self.peer, self.process, self.url, self.folder = peer, process, url, folder

    def ask(self, request: Request) -> bytes:
        """The content of an answer.

        Raises:
            RuntimeError: the status is not 200.
        """
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        with contextlib.closing(connection):
            headers = {"Content-Type": request.content_type, **dict(request.headers)}
            connection.request("POST", request.path, request.body, headers)
            answer = connection.getresponse()
            content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{self.peer.name}: {answer.status} {content[:500]!r}")
        return content

    def load(self, requests: Sequence[Request], **job: Any) -> Outcome:
        """Have another process send the requests in turns; see `benchmarks.load.Job`.

        Raises:
            RuntimeError: an answer's status was not 200.
        """
        first, bodies = requests[0], [request.body for request in requests]
        return from_another_process(self.url, first.path, first.content_type, bodies, self.folder, first.headers, **job)

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """All its processes are stopped during the block: some poll, and take CPU time when they have nothing to do."""
        first, *descendants = processes.family(self.process.pid)
        try:
            for pid in (first, *descendants):
                _send(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in reversed(descendants):
                _send(pid, signal.SIGCONT)
            time.sleep(_RESUME_SECONDS)  # until a parent looks after them, they show that they live
            _send(first, signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """CPU time of all its processes so far."""
        seconds = 0.0
        for pid in processes.family(self.process.pid):
            with contextlib.suppress(OSError):
                seconds += processes.cpu_seconds(pid)
        return seconds

    def memory(self) -> float:
        """Memory of all its processes in MB, shared pages divided among those that share them."""
        return sum(map(processes.proportional_memory, processes.family(self.process.pid)))


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, number)


@contextlib.contextmanager
def running(peer: Peer, setting: Setting, work: Path, folder: Path, port: int) -> Generator[Running]:
    """Start a server in a folder, and end it and all its processes after the block.

    Raises:
        RuntimeError: it did not start; the message holds its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if peer.name == "mlserver":
        mlserver_files(folder, setting, port)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            peer.command(peer.python, setting, port),
            cwd=folder,
            env={**os.environ, **environment(work, setting, port), **_imports(peer)},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Running(peer, process, f"http://127.0.0.1:{port}", folder)
    try:
        _wait_until_ready(server)
        yield server
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def _imports(peer: Peer) -> dict[str, str]:
    return {} if peer.packages else {"PYTHONPATH": str(ROOT)}


def _wait_until_ready(server: Running) -> None:
    end = time.monotonic() + START_SECONDS
    while server.process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=5)
            with contextlib.closing(connection):
                connection.request("GET", server.peer.ready)
                if connection.getresponse().status == 200:
                    return
        time.sleep(0.1)
    raise RuntimeError(f"{server.peer.name} did not start:\n{(server.folder / 'log').read_text('utf-8')[-3000:]}")
