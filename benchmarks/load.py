"""HTTP load on a server, made by a process of its own with little work per request.

    python -m benchmarks.load '{"url": "http://127.0.0.1:8000", "path": "/predict", ...}'

Reads one job as JSON, sends requests on keep-alive connections, and writes what came of them as
JSON to the file the job names: answers by status, the seconds it took, the milliseconds of each.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np


@dataclass(frozen=True)
class Job:
    """What to send.

    Attributes:
        bodies: files, each the body of a request; sent in turns.
        outcome: the file to write.
        clients: connections.
        seconds: for which new requests are sent.
        rate: requests a second over all clients; None: each client sends its next request when
            the last is answered.
        steady: with a rate, all clients send at the same pace, each from a random moment on, as
            cameras do; otherwise requests come at random moments, as from many strangers.
        requests: stop after this many, whatever the time.
        headers: more of each request; its bodies then have one length in them, if any.
    """

    url: str
    path: str
    content_type: str
    bodies: list[str]
    outcome: str
    clients: int
    seconds: float
    rate: float | None = None
    steady: bool = False
    requests: int | None = None
    seed: int = 0
    headers: Sequence[tuple[str, str]] = ()


@dataclass
class Outcome:
    """Answers by status, seconds from the first request to the last answer, ms of each answer."""

    statuses: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    ms: list[float] = field(default_factory=list)

    @property
    def answered(self) -> int:
        """Successes."""
        return self.statuses.get("200", 0) + self.statuses.get("201", 0)


def moments(rate: float, seed: int, clients: int | None = None) -> Iterator[float]:
    """Seconds at which requests are due, without end, in order.

    Args:
        rate: requests a second.
        clients: so many that send at a steady pace; None: a Poisson process.
    """
    rng = np.random.default_rng(seed)
    if clients is None:
        due = 0.0
        while True:
            due += rng.exponential(1 / rate)
            yield due
    period = clients / rate
    phases = np.sort(rng.uniform(0.0, period, clients))
    for turn in count():
        yield from (turn * period + phases).tolist()


class Connection(asyncio.Protocol):
    """One keep-alive connection with one request at a time on it."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._waiter: asyncio.Future[int] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    async def send(self, request: bytes) -> int:
        """Send a request, head and body; the status of its answer."""
        assert self._transport is not None
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiter

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, mark, body = bytes(self._received).partition(b"\r\n\r\n")
        if not mark or self._waiter is None:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) >= length and not self._waiter.done():
            self._received.clear()
            self._waiter.set_result(int(head[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionError(f"the server closed the connection: {exc}"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def send_load(job: Job, bodies: list[bytes]) -> Outcome:
    """Do a job whose bodies have been read."""
    url = urlsplit(job.url)
    requests = [_request(job, url.netloc, body) for body in bodies]
    loop = asyncio.get_running_loop()
    connections = [
        (await loop.create_connection(Connection, url.hostname or "", url.port or 80))[1] for _ in range(job.clients)
    ]
    statuses: Counter[str] = Counter()
    milliseconds: list[float] = []
    sent = 0

    async def one(connection: Connection, due: float) -> None:
        nonlocal sent
        sent += 1
        # uvloop's timers are whole milliseconds: a request may go out a little early.
        began = min(due, time.perf_counter())
        status = await connection.send(requests[sent % len(requests)])
        milliseconds.append(1e3 * (time.perf_counter() - began))
        statuses[str(status)] += 1

    began = time.perf_counter()

    def more() -> bool:
        enough = job.requests is not None and sent >= job.requests
        return not enough and time.perf_counter() - began < job.seconds

    async def closed_loop(connection: Connection) -> None:
        while more():
            await one(connection, time.perf_counter())

    async def open_loop(rate: float) -> None:
        """Time counts from the moment a request was due, whether or not a client was free."""
        free, due_later = deque(connections), deque[float]()

        async def serve(connection: Connection, due: float) -> None:
            await one(connection, due)
            while due_later:
                await one(connection, due_later.popleft())
            free.append(connection)

        async with asyncio.TaskGroup() as tasks:
            for moment in moments(rate, job.seed, job.clients if job.steady else None):
                if not more():
                    break
                due = began + moment
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                if free:
                    tasks.create_task(serve(free.popleft(), due))
                else:
                    due_later.append(due)

    if job.rate is not None:
        await open_loop(job.rate)
    else:
        await asyncio.gather(*(closed_loop(connection) for connection in connections))
    seconds = time.perf_counter() - began
    for connection in connections:
        connection.close()
    return Outcome(dict(statuses), seconds, milliseconds)


def _request(job: Job, host: str, body: bytes) -> bytes:
    more = "".join(f"{name}: {value}\r\n" for name, value in job.headers)
    head = (
        f"POST {job.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {job.content_type}\r\n{more}"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def from_another_process(
    url: str,
    path: str,
    content_type: str,
    bodies: Sequence[bytes],
    folder: Path,
    headers: Sequence[tuple[str, str]] = (),
    **job: Any,
) -> Outcome:
    """Have another process do a job whose bodies, and whose outcome, go through files of a folder.

    Args:
        job: the other attributes of the `Job`.

    Raises:
        RuntimeError: an answer's status was not 200.
    """
    names: list[str] = []
    for number, body in enumerate(bodies):
        name = folder / f"body-{number}"
        name.write_bytes(body)
        names.append(str(name))
    result = folder / "outcome"
    order = Job(url, path, content_type, names, str(result), headers=headers, **job)
    command = [sys.executable, "-m", "benchmarks.load", json.dumps(asdict(order))]
    subprocess.run(command, cwd=Path(__file__).parents[1], check=True)
    outcome = Outcome(**json.loads(result.read_text("ascii")))
    if set(outcome.statuses) != {"200"}:
        raise RuntimeError(f"{url} answered {outcome.statuses}")
    return outcome


def main() -> None:
    try:
        from uvloop import run  # noqa: PLC0415 (half the work per request where there is one)
    except ImportError:
        from asyncio import run  # noqa: PLC0415
    job = Job(**json.loads(sys.argv[1]))
    bodies = [Path(name).read_bytes() for name in job.bodies]
    outcome = run(send_load(job, bodies))
    Path(job.outcome).write_text(json.dumps(asdict(outcome)), encoding="ascii")


if __name__ == "__main__":
    main()
