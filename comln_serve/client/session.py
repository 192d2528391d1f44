"""A request, and how a client does what takes time: `Client` blocks, `AsyncClient` awaits.

The calls of the client are coroutines, written once, that do all such things by a `Session`. On `BlockingSession` they
never suspend, so that `result_of` has their result without an event loop.
"""

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeAlias, TypeVar

import anyio
import anyio.to_thread
import httpx2

from comln_serve.client.results import Limits

_T = TypeVar("_T")
_P = ParamSpec("_P")

_CLEANING_SECONDS = 30.0


@dataclass(frozen=True)
class Request:
    """A request to the server.

    Attributes:
        parameters: of the query; one with several values is repeated, one of None is not sent.
        fields: of a form.
        images: image files of the form.
        content: of a JSON body, where there is no form.
        file: the body as it is, where there is neither.
        repeatable: sending it twice has the effect of sending it once.
    """

    method: str
    path: str
    parameters: Mapping[str, str | bool | int | Sequence[int] | None] = field(default_factory=dict[str, Any])
    fields: Mapping[str, str | bool | Sequence[str]] | None = None
    images: Sequence[bytes] = ()
    content: Mapping[str, Any] | None = None
    file: bytes | None = None
    headers: Mapping[str, str] | None = None
    repeatable: bool = True

    def arguments(self) -> dict[str, Any]:
        """The arguments of `request` of an HTTP client."""
        return {
            "method": self.method,
            "url": self.path,
            "params": {name: value for name, value in self.parameters.items() if value is not None},
            "data": self.fields,
            "files": [("images", ("image", data)) for data in self.images],
            "json": self.content,
            "content": self.file,
            "headers": self.headers,
        }


@dataclass
class _Session:
    """What the calls of one client share.

    Attributes:
        http: what sends requests.
        url: address of the server for messages, without a password.
        retry_seconds: no request is repeated later than this after its first attempt.
        max_side: images are shrunk to this many pixels; None: they are not.
        answered: whether the server has ever answered.
        limits: what a request may have, fewer images where a proxy refuses as many; None until they are asked for.
    """

    http: Any
    url: str
    retry_seconds: float
    max_side: int | None
    answered: bool = False
    limits: Limits | None = None


class BlockingSession(_Session):
    """The session of `Client`. `transport_kind` goes directly to a server, where there must be no proxy."""

    http_kind, transport_kind = httpx2.Client, httpx2.HTTPTransport

    async def send(self, request: Request) -> httpx2.Response:
        """The answer to a request, of any status. Raises httpx2.RequestError if none can be read."""
        return self.http.request(**request.arguments())

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)  # noqa: ASYNC251 - no event loop runs it

    async def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call what blocks."""
        return function(*args, **kwargs)

    def cleaning(self) -> AbstractContextManager[object]:
        """The block cleans up after the call was cancelled: that must not be cancelled as well, nor take long."""
        return nullcontext()


class AsyncSession(_Session):
    """The session of `AsyncClient`, on asyncio and trio: the same methods."""

    http_kind, transport_kind = httpx2.AsyncClient, httpx2.AsyncHTTPTransport

    async def send(self, request: Request) -> httpx2.Response:
        return await self.http.request(**request.arguments())

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await anyio.to_thread.run_sync(partial(function, *args, **kwargs))

    def cleaning(self) -> AbstractContextManager[object]:
        return anyio.move_on_after(_CLEANING_SECONDS, shield=True)


Session: TypeAlias = BlockingSession | AsyncSession


def result_of(call: Coroutine[Any, Any, _T]) -> _T:
    """The result of a call on `BlockingSession`."""
    try:
        call.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
    raise RuntimeError("a call of the client that blocks was suspended")
