"""`Client` and `AsyncClient`: the same calls, for programs that wait and for those on an event loop."""

import functools
import inspect
import os
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

import httpx2

from comln_serve import __version__
from comln_serve.client import calls, making, predicting
from comln_serve.client.arguments import seconds_of, side_of
from comln_serve.client.asking import Session
from comln_serve.client.errors import InputError
from comln_serve.client.images import DEFAULT_MAX_SIDE
from comln_serve.client.runtime import AsyncRuntime, BlockingRuntime, result_of

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Transport = TypeVar("_Transport")

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_TIMEOUT = 300.0
DEFAULT_RETRY_SECONDS = 120.0
_CONNECT_SECONDS = 10.0
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}

_Call = Callable[Concatenate[Session, _P], Coroutine[Any, Any, _T]]


def _blocking(call: _Call[_P, _T]) -> Callable[Concatenate["Client", _P], _T]:
    """The call as a method of `Client`."""

    @functools.wraps(call)
    def method(self: "Client", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return result_of(call(self._session, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return _as_method(method)


def _awaitable(call: _Call[_P, _T]) -> Callable[Concatenate["AsyncClient", _P], Coroutine[Any, Any, _T]]:
    """The call as a method of `AsyncClient`."""

    @functools.wraps(call)
    async def method(self: "AsyncClient", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await call(self._session, *args, **kwargs)  # pyright: ignore[reportPrivateUsage]

    return _as_method(method)


def _as_method(method: _T) -> _T:
    """Show help() `self` in place of the session."""
    signature = inspect.signature(cast("Callable[..., Any]", method))
    session, *others = signature.parameters.values()
    parameters = [session.replace(name="self", annotation=inspect.Parameter.empty), *others]
    setattr(method, "__signature__", signature.replace(parameters=parameters))  # noqa: B010
    return method


class _Base(Generic[_Transport]):
    """A client of comln-serve. Its calls are safe from many threads or tasks.

    Args:
        url: address of the server; default: the environment's COMLN_URL, or http://127.0.0.1:8000.
        key: API key; default: the environment's COMLN_KEY, or none.
        timeout: seconds to wait for the server to take or send anything; a request of many images is answered when
            all of them are embedded.
        retry_seconds: a request is not repeated later than this after its first attempt.
        max_side: images are shrunk to this many pixels before they are sent; None: never. Models look at a few
            hundred pixels.
        verify: how to check the certificate of an https server; False: not at all.
        transport: what carries requests, in place of connections.

    Raises:
        InputError: url, key, timeout, retry_seconds or max_side cannot be used, or a proxy of the environment cannot.
    """

    # The HTTP client, its transport without proxies, and what the calls use it by.
    _connect: ClassVar[Any]
    _direct: ClassVar[Any]
    _runtime: ClassVar[Any]

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        retry_seconds: float = DEFAULT_RETRY_SECONDS,
        max_side: int | None = DEFAULT_MAX_SIDE,
        verify: ssl.SSLContext | bool = True,
        transport: _Transport | None = None,
    ) -> None:
        address = _checked_url(url or os.environ.get("COMLN_URL") or DEFAULT_URL)
        timeout = seconds_of("timeout", timeout, zero=False)
        retry_seconds = seconds_of("retry_seconds", retry_seconds, zero=True)
        max_side = side_of(max_side)
        if transport is None and httpx2.URL(address).host in _LOOPBACK:
            transport = self._direct(verify=verify)  # the environment's proxies cannot reach this machine's own address
        headers = _headers(key or os.environ.get("COMLN_KEY"), address)
        try:
            self._http = self._connect(  # opens connections when they are needed
                base_url=address,
                headers=headers,
                timeout=httpx2.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
                verify=verify,
                transport=transport,
            )
        except (ImportError, ValueError, httpx2.InvalidURL) as error:
            raise InputError(
                f"a proxy that the environment names (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY) cannot be used: {error}"
            ) from error
        self._url = address
        self._session = Session(self._runtime(self._http), _without_user(address), retry_seconds, max_side)

    @property
    def url(self) -> str:
        """Address of the server, without a slash at the end."""
        return self._url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._session.url!r})"  # without key and password: notebooks are shared


class Client(_Base[httpx2.BaseTransport]):
    """`with Client("http://127.0.0.1:8000") as client: ...` closes the connections at the end; so does `close`."""

    _connect, _direct, _runtime = httpx2.Client, httpx2.HTTPTransport, BlockingRuntime

    adapt = _blocking(making.adapt)
    adapt_folder = _blocking(making.adapt_folder)
    add_examples = _blocking(making.add_examples)
    add_examples_folder = _blocking(making.add_examples_folder)
    remove_examples = _blocking(making.remove_examples)
    adapt_again = _blocking(making.adapt_again)
    import_support = _blocking(making.import_support)
    relabel_examples = _blocking(making.relabel_examples)
    rename_classes = _blocking(making.rename_classes)
    predict = _blocking(predicting.predict)
    predict_folder = _blocking(predicting.predict_folder)
    evaluate = _blocking(predicting.evaluate)
    evaluate_folder = _blocking(predicting.evaluate_folder)
    classifiers = _blocking(calls.classifiers)
    classifier = _blocking(calls.classifier)
    examples = _blocking(calls.examples)
    thumbnail = _blocking(calls.thumbnail)
    delete = _blocking(calls.delete)
    promote = _blocking(calls.promote)
    edit = _blocking(calls.edit)
    rollback = _blocking(calls.rollback)
    export = _blocking(calls.export)
    models = _blocking(calls.models)
    reload_models = _blocking(calls.reload_models)
    limits = _blocking(calls.limits)
    live = _blocking(calls.live)
    ready = _blocking(calls.ready)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class AsyncClient(_Base[httpx2.AsyncBaseTransport]):
    """The same calls for asyncio and trio: `async with AsyncClient() as client: await client.predict(...)`."""

    _connect, _direct, _runtime = httpx2.AsyncClient, httpx2.AsyncHTTPTransport, AsyncRuntime

    adapt = _awaitable(making.adapt)
    adapt_folder = _awaitable(making.adapt_folder)
    add_examples = _awaitable(making.add_examples)
    add_examples_folder = _awaitable(making.add_examples_folder)
    remove_examples = _awaitable(making.remove_examples)
    adapt_again = _awaitable(making.adapt_again)
    import_support = _awaitable(making.import_support)
    relabel_examples = _awaitable(making.relabel_examples)
    rename_classes = _awaitable(making.rename_classes)
    predict = _awaitable(predicting.predict)
    predict_folder = _awaitable(predicting.predict_folder)
    evaluate = _awaitable(predicting.evaluate)
    evaluate_folder = _awaitable(predicting.evaluate_folder)
    classifiers = _awaitable(calls.classifiers)
    classifier = _awaitable(calls.classifier)
    examples = _awaitable(calls.examples)
    thumbnail = _awaitable(calls.thumbnail)
    delete = _awaitable(calls.delete)
    promote = _awaitable(calls.promote)
    edit = _awaitable(calls.edit)
    rollback = _awaitable(calls.rollback)
    export = _awaitable(calls.export)
    models = _awaitable(calls.models)
    reload_models = _awaitable(calls.reload_models)
    limits = _awaitable(calls.limits)
    live = _awaitable(calls.live)
    ready = _awaitable(calls.ready)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()


def _checked_url(url: str) -> str:
    if not isinstance(cast("object", url), str):
        raise InputError(f"url is {url!r}; give the address of a server, like {DEFAULT_URL} or https://host/path")
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise InputError(f"url is {url!r}: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        raise InputError(
            f"url is {_without_user(url)!r}; give the address of a server, like {DEFAULT_URL} or https://host/path"
        )
    if parsed.port is not None and not 0 < parsed.port < 65536:
        raise InputError(f"url is {_without_user(url)!r}; ports go from 1 to 65535")
    return url.rstrip("/")


def _without_user(url: str) -> str:
    """An address to show: without the name and the password that it may have for a proxy before the server."""
    parsed = httpx2.URL(url)
    return str(parsed.copy_with(userinfo=b"")) if parsed.userinfo else url


def _headers(key: str | None, address: str) -> dict[str, str]:
    agent = {"User-Agent": f"comln-serve-client/{__version__}"}
    key = (key or "").strip()  # secrets are often read from files, which end with a line break
    if not key:
        return agent
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InputError("the API key has characters that no key has; give it as `comln-serve keys create` printed it")
    if httpx2.URL(address).userinfo:
        raise InputError(
            f"there is an API key, and a user in the address of {_without_user(address)}; each needs the header "
            "Authorization, so give only one of them"
        )
    return {**agent, "Authorization": f"Bearer {key}"}
