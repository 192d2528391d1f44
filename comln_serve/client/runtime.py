"""How a client does what takes time: `Client` blocks, `AsyncClient` awaits.

The calls of the client are coroutines, written once, that do all such things by a `Runtime`. On `BlockingRuntime` they
never suspend, so that `result_of` has their result without an event loop.
"""

import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread
import httpx2

from comln_serve.client.request import Request

_T = TypeVar("_T")
_Arguments = TypeVarTuple("_Arguments")

_CLEANING_SECONDS = 30.0


class BlockingRuntime:
    """The runtime of `Client`."""

    def __init__(self, http: httpx2.Client) -> None:
        self.http = http

    async def send(self, request: Request) -> httpx2.Response:
        """The answer to a request, of any status. Raises httpx2.RequestError if none can be read."""
        return self.http.request(**request.arguments())

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)  # noqa: ASYNC251 - no event loop runs it

    async def call(self, function: Callable[[*_Arguments], _T], *arguments: *_Arguments) -> _T:
        """Call what blocks."""
        return function(*arguments)

    def cleaning(self) -> AbstractContextManager[object]:
        """The block cleans up after the call was cancelled: that must not be cancelled as well, nor take long."""
        return nullcontext()


class AsyncRuntime:
    """The runtime of `AsyncClient`, on asyncio and trio: the same methods."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def send(self, request: Request) -> httpx2.Response:
        return await self.http.request(**request.arguments())

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def call(self, function: Callable[[*_Arguments], _T], *arguments: *_Arguments) -> _T:
        return await anyio.to_thread.run_sync(function, *arguments)

    def cleaning(self) -> AbstractContextManager[object]:
        return anyio.move_on_after(_CLEANING_SECONDS, shield=True)


Runtime: TypeAlias = BlockingRuntime | AsyncRuntime


def result_of(call: Coroutine[Any, Any, _T]) -> _T:
    """The result of a call on `BlockingRuntime`."""
    try:
        call.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
    raise RuntimeError("a call of the client that blocks was suspended")
