"""A server in its environment: start, ask, load, and what its processes use."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.load import Job, Outcome
from benchmarks.peers.peer import Peer, Request, Setting, environment, mlserver_files
from benchmarks.serving import ROOT
from benchmarks.workers import proportional_kilobytes

START_SECONDS = 120


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

    def load(self, requests: Sequence[Request], **job: object) -> Outcome:
        """Have another process send the requests in turns; see `benchmarks.load.Job`.

        Raises:
            RuntimeError: an answer's status was not 200.
        """
        names: list[str] = []
        for number, request in enumerate(requests):
            path = self.folder / f"body-{number}"
            path.write_bytes(request.body)
            names.append(str(path))
        result = self.folder / "outcome"
        first = requests[0]
        order = Job(self.url, first.path, first.content_type, names, str(result), headers=first.headers, **job)  # type: ignore[arg-type]
        subprocess.run([sys.executable, "-m", "benchmarks.load", json.dumps(asdict(order))], cwd=ROOT, check=True)
        outcome = Outcome(**json.loads(result.read_text("ascii")))
        if set(outcome.statuses) != {"200"}:
            raise RuntimeError(f"{self.peer.name} answered {outcome.statuses}")
        return outcome

    def cpu_seconds(self) -> float:
        """CPU time of all its processes so far."""
        ticks = 0
        for pid in self._processes():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Memory of all its processes in MB, shared pages divided among those that share them."""
        return sum(proportional_kilobytes(pid) for pid in self._processes()) / 1024

    def _processes(self) -> list[int]:
        """It and its descendants."""
        found = [self.process.pid]
        for pid in found:  # grows meanwhile
            with contextlib.suppress(OSError):
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    found += [int(child) for child in (thread / "children").read_text("ascii").split()]
        return found


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
