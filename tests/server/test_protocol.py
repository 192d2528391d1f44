"""What one connection does with bytes, timers and clients that leave: the server's protocol in this process, before an
application of the test. Time passes as the tests say.
"""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.datastructures import State
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.server import ServerState

from comln_serve.api.receive.pace import Pace
from comln_serve.server.protocol import MOST_HEAD_BYTES, Protocol

# A request or a client that is not told would wait without end.
pytestmark = pytest.mark.timeout(60)

SECONDS = 100  # max_receive_seconds and max_send_seconds
LARGE = 2**24  # bytes of an answer, more than sockets buffer
LIVE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


class Loop(asyncio.SelectorEventLoop):
    """A loop whose clock can be put forward."""

    skipped = 0.0

    def time(self) -> float:
        return super().time() + self.skipped


class Application:
    """An ASGI application with the state that the protocol needs."""

    def __init__(self, app: ASGIApp) -> None:
        settings = SimpleNamespace(max_receive_seconds=SECONDS, max_send_seconds=SECONDS)
        self.state = State({"pace": Pace(), "engine": SimpleNamespace(settings=settings)})
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


Talk = Callable[[StreamReader, StreamWriter], Coroutine[Any, Any, None]]


def talk_to(app: ASGIApp, talk: Talk) -> None:
    """Connect to a server of `app` and `talk` over the connection."""

    @asynccontextmanager
    async def server() -> AsyncGenerator[tuple[str, int], None]:
        config = uvicorn.Config(Application(app), http=Protocol, ws="none", log_config=None, timeout_keep_alive=10**6)
        config.load()
        loop, state = asyncio.get_running_loop(), ServerState()
        async with await loop.create_server(lambda: Protocol(config, state, {}), "127.0.0.1", 0) as listening:
            yield listening.sockets[0].getsockname()

    async def run() -> None:
        async with server() as address:
            reader, writer = await asyncio.open_connection(*address)
            try:
                await talk(reader, writer)
            finally:
                writer.close()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(run())


async def let_others_run() -> None:
    """Let the server read what was sent, and timers run that are due."""
    for _ in range(5):
        await asyncio.sleep(0)


async def pass_time() -> None:
    """Let more time pass than any limit, and the timers run that are due then."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    loop.skipped += 10 * SECONDS
    await let_others_run()


async def answer(send: Send, body: bytes = b"ok") -> None:
    """Send a whole answer."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


async def is_answered(reader: StreamReader) -> bool:
    """Read one answer, with the usual body; False if there is none."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        return head.startswith(b"HTTP/1.1 200 ") and await reader.readexactly(2) == b"ok"
    except (asyncio.IncompleteReadError, ConnectionError):
        return False


def test_a_body_in_tiny_pieces_is_parsed_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the parts other connections have their turn. Meanwhile no more is read."""
    sizes, kept = list[int](), list[int]()
    data_received = Protocol.data_received

    def noted(protocol: Protocol, data: bytes) -> None:
        data_received(protocol, data)
        kept.append(len(protocol._reading.unparsed))

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        message: Message = {"more_body": True}
        while message["more_body"]:
            message = await receive()
            sizes.append(len(message["body"]))
        await answer(send)

    async def talk(reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(CHUNKED + b"1\r\nx\r\n" * 200_000 + b"0\r\n\r\n")
        assert await is_answered(reader)

    monkeypatch.setattr(Protocol, "data_received", noted)
    talk_to(app, talk)
    assert sum(sizes) == 200_000
    assert max(sizes) < 2000
    assert max(kept) <= 2**18  # which asyncio reads at once


def test_no_more_is_read_while_requests_wait_behind_the_one_in_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the application asks for what comes next."""
    many = LIVE * 150  # more than is parsed at once
    reads, in_work, sent = list[int](), asyncio.Event(), asyncio.Event()
    data_received = Protocol.data_received

    def noted(protocol: Protocol, data: bytes) -> None:
        reads.append(len(data))
        data_received(protocol, data)

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        if not in_work.is_set():
            in_work.set()
            await sent.wait()
            for _ in range(3):
                asking = asyncio.create_task(receive())
                await let_others_run()
                asking.cancel()
            assert reads == [len(many)]
        await answer(send)

    async def talk(reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(many)
        await in_work.wait()
        writer.write(many)
        await let_others_run()
        sent.set()
        for _ in range(300):
            assert await is_answered(reader)

    monkeypatch.setattr(Protocol, "data_received", noted)
    talk_to(app, talk)


def test_a_head_that_arrives_in_part_behind_others_is_read_on() -> None:
    whole = 4096 // len(LIVE)  # of these, what is parsed at once holds one byte more

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await answer(send)

    async def talk(reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(LIVE * whole + LIVE[:-2])
        for _ in range(whole):
            assert await is_answered(reader)
        await let_others_run()
        writer.write(LIVE[-2:])
        assert await asyncio.wait_for(is_answered(reader), 10)

    talk_to(app, talk)


def test_a_request_in_work_may_take_longer_than_one_to_arrive() -> None:
    in_work, go_on = asyncio.Event(), asyncio.Event()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        in_work.set()
        await go_on.wait()
        await answer(send)

    async def talk(reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(LIVE)
        await in_work.wait()
        await pass_time()
        go_on.set()
        assert await is_answered(reader)

    talk_to(app, talk)


async def begin_large(send: Send) -> None:
    """Send so much of an answer that some of it waits until its client reads."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
    await send({"type": "http.response.body", "body": bytes(LARGE - 2), "more_body": True})


def test_a_client_that_has_read_is_not_dropped_later() -> None:
    waits = asyncio.Event()

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["path"] == "/":
            await answer(send)
            return
        await begin_large(send)
        waits.set()
        await send({"type": "http.response.body", "body": b"ok"})

    async def talk(reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(LIVE.replace(b"/", b"/large", 1))
        await waits.wait()
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(LARGE)
        await pass_time()
        writer.write(LIVE)
        assert await is_answered(reader)

    talk_to(app, talk)


@pytest.mark.parametrize("behind", [b"", LIVE], ids=["alone", "with another request behind"])
def test_a_request_is_told_that_its_client_was_dropped(behind: bytes) -> None:
    """For it does not read."""
    waits, told, received = asyncio.Event(), asyncio.Event(), list[str]()

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await begin_large(send)
        waits.set()
        received.extend([(await receive())["type"], (await receive())["type"]])
        told.set()

    async def talk(_reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(LIVE + behind)
        await waits.wait()
        await pass_time()
        await told.wait()

    talk_to(app, talk)
    assert received == ["http.request", "http.disconnect"]


def test_each_head_of_a_connection_may_have_the_allowed_size() -> None:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await answer(send)

    async def talk(reader: StreamReader, writer: StreamWriter) -> None:
        head = LIVE[:-2] + b"X: " + b"y" * (MOST_HEAD_BYTES - 1000) + b"\r\n\r\n"
        for parts in ((head[:10], head[10:]), (head,)):
            for part in parts:
                writer.write(part)
                await let_others_run()
            assert await is_answered(reader)

    talk_to(app, talk)
