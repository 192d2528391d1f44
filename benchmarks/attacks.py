"""Attacks on a server, each made by a process of its own, whose low priority leaves the cores to the server.

    python -m benchmarks.attacks '["connections opened and closed", "http://127.0.0.1:8000", null, 15]'

Prints a line when it is prepared, attacks for the time it is told, and then prints how often the server answered what,
as JSON. `benchmarks.hostile` has made the classifiers that the attacks name.
"""

import asyncio
import itertools
import json
import os
import re
import socket
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import numpy as np

from benchmarks.serving import CONTENT_TYPE, form, photo
from comln_serve.bundle.head import MAX_HORIZON
from comln_serve.configuration.settings import Settings
from comln_serve.machine import usable_cpus
from tests.support.hostile_files import (
    bmp_in_runs,
    exif_of,
    jpeg_of_scans,
    jpeg_of_segments,
    jpeg_of_separate_scans,
    padded_jpeg,
    plain,
    png_of_chunks,
    webp_bomb,
)
from tests.support.image_files import encode

AT_ONCE = 24  # changes of classifiers
KNOWN, LARGE, WIDE = "attacker-known", "attacker-large", "attacker-wide"  # classifiers; of the last one for each change
LARGE_EXAMPLES = 3000
MOST = {name: entry.default for name, entry in Settings.model_fields.items()}

_NICENESS = 10
_PIECE = 2**18  # bytes handed to a connection at once
_STAYS_S = 0.3  # of a client that does not wait for its answer
_PAUSE_S = 0.5  # between the bytes of a client that trickles


@dataclass(frozen=True)
class Target:
    """What to attack.

    Attributes:
        name: of the attack.
        key: of the attacker; None: the server takes requests without one.
        got: answers by status, and what else became of connections.
    """

    name: str
    url: str
    key: str | None
    seconds: float
    got: Counter[str] = field(default_factory=Counter[str], init=False)

    def head(self, method: str, path: str, **fields: object) -> bytes:
        """A request's head without the empty line at its end."""
        key = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        named = {"Host": urlsplit(self.url).netloc, **key, **{n.replace("_", "-"): v for n, v in fields.items()}}
        return f"{method} {path} HTTP/1.1\r\n".encode() + "".join(f"{n}: {v}\r\n" for n, v in named.items()).encode()

    def request(self, method: str, path: str, body: bytes = b"", content_type: str = CONTENT_TYPE) -> bytes:
        """A whole request."""
        return self.head(method, path, Content_Type=content_type, Content_Length=len(body)) + b"\r\n" + body

    def predict(self, files: Sequence[bytes], **options: str) -> bytes:
        return self.request("POST", "/predict", form(files, [("classifier", KNOWN), *options.items()]))

    def json(self, body: bytes) -> bytes:
        return self.request("POST", "/adapt", body, "application/json")

    @asynccontextmanager
    async def connected(
        self, buffer: int | None = None, source: str | None = None
    ) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter], None]:
        """A connection, aborted at the end.

        Args:
            buffer: bytes that the system keeps of what is not read; None: its default.
            source: address to connect from: the ports of one are used up by connecting very often.
        """
        connection = socket.socket()
        connection.setblocking(False)
        if buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        url = urlsplit(self.url)
        try:
            if source is not None:
                connection.bind((source, 0))
            await asyncio.get_running_loop().sock_connect(connection, (url.hostname, url.port))
            reader, writer = await asyncio.open_connection(sock=connection)
        except BaseException:
            connection.close()
            raise
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


Client = Callable[[], Awaitable[None]]
"""Attacks over one connection until that ends; repeated until the time is over."""


async def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send it, or as much of it as the server reads."""
    with suppress(OSError):
        for start in range(0, len(data), _PIECE):
            writer.write(data[start : start + _PIECE])
            await writer.drain()


def asking(target: Target, requests: Iterator[bytes]) -> Client:
    """Sends requests and reads their answers, one after another."""

    async def client() -> None:
        async with target.connected() as (reader, writer):
            kept = True
            while kept:
                sending = asyncio.create_task(write(writer, next(requests)))
                try:
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    target.got[head[9:12].decode()] += 1
                    (length,) = re.findall(rb"content-length: (\d+)", head)
                    await reader.readexactly(int(length))
                    kept = sending.done() and b"connection: close" not in head
                finally:
                    sending.cancel()

    return client


def ask(target: Target, count: int, *requests: bytes) -> list[Client]:
    """So many clients that send these in turns."""
    return [
        asking(target, itertools.cycle(requests[n % len(requests) :] + requests[: n % len(requests)]))
        for n in range(count)
    ]


def unread(target: Target, count: int, request: bytes, *, trickled: bool = False) -> list[Client]:
    """Clients that never read their answers, or a byte at a time."""

    async def client() -> None:
        async with target.connected(buffer=4096) as (reader, writer):
            if not trickled:
                cast("asyncio.Transport", writer.transport).pause_reading()
            sending = asyncio.create_task(write(writer, request))
            target.got["connected"] += 1
            try:
                while True:
                    await asyncio.sleep(_PAUSE_S)
                    if trickled:
                        await reader.readexactly(1)
            finally:
                sending.cancel()

    return [client] * count


def trickled(target: Target, count: int, begun: bytes) -> list[Client]:
    """Clients that send the beginning of a request, and then a byte now and then; they count the answer."""

    async def client() -> None:
        async with target.connected() as (reader, writer):
            await write(writer, begun)
            answer = asyncio.create_task(reader.readline())
            target.got["connected"] += 1
            while not answer.done():
                await asyncio.sleep(_PAUSE_S)
                await write(writer, b"x")
            target.got[answer.result()[9:12].decode() or "disconnected"] += 1

    return [client] * count


def pipelined(target: Target) -> list[Client]:
    """32 MB of requests."""
    live = target.head("GET", "/health/live") + b"\r\n"
    return unread(target, 10, live * (3_200_000 // len(live)))


def large_answers(target: Target) -> list[Client]:
    return unread(target, 12, target.request("GET", f"/classifiers/{LARGE}/support"))


def exports(target: Target) -> list[Client]:
    return unread(target, 4, target.request("GET", f"/classifiers/{KNOWN}/export"))


def slow_readers(target: Target) -> list[Client]:
    return unread(target, 50, target.request("GET", f"/classifiers/{KNOWN}/export"), trickled=True)


def endless_heads(target: Target) -> list[Client]:
    begun = target.head("GET", "/health/live")
    return ask(target, 4, begun + b"X: y\r\n" * (20_000_000 // 6), begun + b"X: " + b"y" * 100_000_000)


def bombs(target: Target) -> list[Client]:
    return ask(target, 8, target.predict([webp_bomb()] * 40))


def costly_files(target: Target) -> list[Client]:
    """Those that have to be refused, each of which is looked at, and some that are just allowed."""
    refused = [
        jpeg_of_scans(10_000),
        padded_jpeg(),
        jpeg_of_segments(),
        png_of_chunks(),
        encode(plain(), "PNG", exif=exif_of(60_000)),
        encode(plain(), "JPEG", exif=exif_of(5000)),
    ]
    allowed = [jpeg_of_scans(185, plain(1999)), jpeg_of_separate_scans(8000), bmp_in_runs(1000, 1000, run=1)]
    return ask(target, 8, target.predict(refused * 2, partial="true"), target.predict(allowed * 2))


def json_bodies(target: Target) -> list[Client]:
    size = MOST["max_json_bytes"]
    image = b'{"image":"","label":"a"},'
    bodies = [
        b"[" + b"[]," * (size // 3 - 2) + b"[]]",
        b'{"a":' * (size // 5),
        b'{"support":[' + image * 60_000 + b"0]}",
        b'{"support":[' + image * (size // len(image) - 2) + b"0]}",
        b'{"support":[],"metadata":{"a":"' + "\U0001f600".encode() * (size // 4 - 10) + b'"}}',
    ]
    return ask(target, 8, *map(target.json, bodies))


def removals(target: Target) -> list[Client]:
    paths = [f"/classifiers/{LARGE}/examples/{number}" for number in range(1, LARGE_EXAMPLES + 1)]
    requests = itertools.cycle([target.request("DELETE", path) for path in paths])
    return [asking(target, requests)] * AT_ONCE


def long_adaptations(target: Target) -> list[Client]:
    body = json.dumps({"horizon": MAX_HORIZON}).encode()
    paths = [f"/classifiers/{WIDE}-{n}/adapt" for n in range(AT_ONCE)]
    return [
        client for path in paths for client in ask(target, 1, target.request("POST", path, body, "application/json"))
    ]


def single_photos(target: Target) -> list[Client]:
    return ask(target, 300, target.predict([photo(np.random.default_rng(1), 500, 375)]))


def many_photos(target: Target) -> list[Client]:
    return ask(target, 2000, target.predict([photo(np.random.default_rng(1), 500, 375)]))


def many_probes(target: Target) -> list[Client]:
    return ask(target, 2000, target.request("GET", "/health/live"))


def most_images(target: Target) -> list[Client]:
    return ask(target, 64, target.predict([photo(np.random.default_rng(1), 120, 90)] * MOST["max_images"]))


def departing(target: Target) -> list[Client]:
    """200 connections that send a photo, or 100 small ones, and leave without an answer; half of them send another
    request behind it, so that the server reads no further and cannot see them leave.
    """
    photos = [[photo(np.random.default_rng(1), 500, 375)], [photo(np.random.default_rng(1), 120, 90)] * 100]
    further = target.request("GET", "/health/live")
    bodies = [target.predict(files) + more for files in photos for more in (b"", further)]

    def client_of(number: int) -> Client:
        async def client() -> None:
            async with target.connected(source=f"127.0.0.{2 + number}") as (_, writer):
                target.got["connected"] += 1
                await write(writer, bodies[number % len(bodies)])
                await asyncio.sleep(_STAYS_S)

        return client

    return [client_of(number) for number in range(200)]


def slow_senders(target: Target) -> list[Client]:
    """100 heads, and 100 bodies that arrive but for their end, together of more bytes than the server keeps."""
    head = target.head("POST", "/predict", Content_Type=CONTENT_TYPE, Content_Length=10_000_000)
    body = form([bytes(5_500_000)], [])
    return trickled(target, 100, head + b"X-Trickled: ") + trickled(target, 100, head + b"\r\n" + body[:-20])


def flood(target: Target) -> list[Client]:
    """Connections that are closed at once, with nothing sent or the beginning of a request."""

    def client_of(number: int) -> Client:
        async def client() -> None:
            async with target.connected(source=f"127.0.0.{2 + number}") as (_, writer):
                target.got["connected"] += 1
                if number % 2:
                    await write(writer, b"POST /predict HTTP/1.1\r\nHost: ")

        return client

    return [client_of(number) for number in range(16)]


@dataclass(frozen=True)
class Attack:
    """An attack.

    Attributes:
        clients: of a target, built before the attack begins.
        more_mb: memory that the settings let such requests take, beyond the growth allowed in all attacks; see
            docs/deployment.md.
        without_keys: whether tenants make a difference, so that it is also measured without keys.
    """

    clients: Callable[[Target], list[Client]]
    more_mb: float = 0
    without_keys: bool = False


_HELD_MB, _PIXELS_MB = MOST["max_pending_bytes"] / 2**20, 16 * MOST["max_image_pixels"] / 2**20
_SOLVES_MB = 600.0 * max(1, min(usable_cpus(), 4))

ATTACKS = {
    "32 MB of pipelined requests, unread": Attack(pipelined),
    "12 large answers, unread": Attack(large_answers, _HELD_MB),
    "4 exports, unread": Attack(exports),
    "heads of 20 and of 100 MB": Attack(endless_heads),
    "40 images of 64 megapixels a request": Attack(bombs, _PIXELS_MB, without_keys=True),
    "files that take long to open or decode": Attack(costly_files, _PIXELS_MB, without_keys=True),
    "8 JSON bodies of 16 MB": Attack(json_bodies),
    "24 removals from 3000 examples": Attack(removals, _SOLVES_MB),
    "24 adaptations, 500 classes, longest horizon": Attack(long_adaptations, _SOLVES_MB, without_keys=True),
    "300 connections, a photo each": Attack(single_photos, without_keys=True),
    "2000 connections, a photo each": Attack(many_photos, _HELD_MB, without_keys=True),
    "2000 connections, a probe of health each": Attack(many_probes),
    "64 connections, 512 images each": Attack(most_images, _HELD_MB, without_keys=True),
    "200 connections that leave before their answers": Attack(departing, _HELD_MB, without_keys=True),
    "200 requests that trickle in": Attack(slow_senders, _HELD_MB, without_keys=True),
    "50 answers read a byte at a time": Attack(slow_readers),
    "connections opened and closed": Attack(flood),
}


async def attack(target: Target) -> None:
    clients = ATTACKS[target.name].clients(target)
    print("begins", flush=True)

    async def repeat(client: Client) -> None:
        while True:
            try:
                await client()
            except (OSError, EOFError):
                target.got["broken off"] += 1
                await asyncio.sleep(0.01)

    with suppress(TimeoutError):
        async with asyncio.timeout(target.seconds):
            await asyncio.gather(*map(repeat, clients))
    print(json.dumps(target.got), flush=True)


if __name__ == "__main__":
    os.nice(_NICENESS)
    asyncio.run(attack(Target(*json.loads(sys.argv[1]))))
