"""An engine's application behind a real socket, served by a thread of this process."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from threading import Event

import uvicorn

from comln_serve.api.app import create_app
from comln_serve.engine.engine import Engine
from tests.support.engines import batcher_of, before_each_batch
from tests.support.live import free_port
from tests.support.waiting import wait_until


@contextmanager
def served(engine: Engine, *, wait: bool = True) -> Generator[str, None, None]:
    """The URL of the engine's application, by default once it is ready."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(create_app(engine), port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started and (engine.ready or not wait))
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


class Held:
    """Stands before the backbone of `tiny`: batches run only while it is open."""

    def __init__(self, engine: Engine) -> None:
        self._batcher = batcher_of(engine)
        self._open = Event()
        self._open.set()
        self.batches: list[int] = []
        before_each_batch(engine, self._wait)

    def _wait(self, count: int) -> None:
        self.batches.append(count)
        assert self._open.wait(60)

    @property
    def threads(self) -> int:
        """How many batches run at a time."""
        return self._batcher.at_once

    @property
    def queued(self) -> int:
        return self._batcher.queued

    def hold(self) -> None:
        self._open.clear()
        self.batches.clear()

    def release(self) -> None:
        self._open.set()
