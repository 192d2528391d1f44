"""`Client` and `AsyncClient`: the same calls, for programs that wait and for those on an event loop."""

import functools
import os
import re
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

import httpx2

from comln_serve import __version__
from comln_serve.client.arguments import checked_seconds, checked_side
from comln_serve.client.calls import StoredCalls
from comln_serve.client.errors import InputError
from comln_serve.client.images import DEFAULT_MAX_SIDE
from comln_serve.client.making import MakingCalls
from comln_serve.client.predicting import PredictingCalls
from comln_serve.client.session import AsyncSession, BlockingSession, result_of

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Transport = TypeVar("_Transport")

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_TIMEOUT = 300.0
DEFAULT_RETRY_SECONDS = 120.0
_CONNECT_SECONDS = 10.0
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class _Base(Generic[_Transport]):
    """What both clients have."""

    _session_kind: ClassVar[type[Any]]

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
        """Open no connection yet.

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
            InputError: an argument, or a proxy that the environment names, cannot be used.
        """
        address = _checked_url(url or os.environ.get("COMLN_URL") or DEFAULT_URL)
        timeout = checked_seconds("timeout", timeout, zero=False)
        retry_seconds = checked_seconds("retry_seconds", retry_seconds, zero=True)
        max_side = checked_side(max_side)
        if transport is None and httpx2.URL(address).host in _LOOPBACK:
            # The environment's proxies cannot reach this machine's own address.
            transport = self._session_kind.transport_kind(verify=verify)
        headers = _headers(key or os.environ.get("COMLN_KEY"), address)
        try:
            http = self._session_kind.http_kind(
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
        self._session = self._session_kind(http, _without_user(address), retry_seconds, max_side)

    @property
    def url(self) -> str:
        """Address of the server, without a slash at the end."""
        return self._url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._session.url!r})"  # without key and password: notebooks are shared


class AsyncClient(_Base[httpx2.AsyncBaseTransport], MakingCalls, PredictingCalls, StoredCalls):
    """The calls of `Client`, to be awaited on asyncio or trio. They are safe from many tasks.

    `async with AsyncClient() as client: await client.predict(...)` closes the connections at the end; so does `close`.
    """

    _session_kind = AsyncSession

    async def close(self) -> None:
        """Close the connections."""
        await self._session.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()


def _blocking(call: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]) -> Callable[Concatenate["Client", _P], _T]:
    """A call of `AsyncClient` as a method of `Client`, whose session blocks.

    So a call may await nothing of `self` but what it does by the session: on `Client`, other calls are no coroutines.
    """

    @functools.wraps(call)
    def method(self: "Client", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return result_of(call(self, *args, **kwargs))

    return method


class Client(_Base[httpx2.BaseTransport]):
    """A client of comln-serve whose calls return when they are done. They are safe from many threads.

    `with Client() as client: client.predict(...)` closes the connections at the end; so does `close`.

    A classifier is given as its id, name, name@version, or what a call returned. A change of its examples or classes
    makes a new version of one with a name; one without changes in place.

    Every call raises ComlnError if the server refuses it or there is no answer (NoAnswerError), its subclass
    NotFoundError if there is no such classifier, and InputError for arguments that cannot be sent.
    """

    _session_kind = BlockingSession

    adapt = _blocking(AsyncClient.adapt)
    adapt_folder = _blocking(AsyncClient.adapt_folder)
    add_examples = _blocking(AsyncClient.add_examples)
    add_examples_folder = _blocking(AsyncClient.add_examples_folder)
    remove_examples = _blocking(AsyncClient.remove_examples)
    adapt_again = _blocking(AsyncClient.adapt_again)
    import_support = _blocking(AsyncClient.import_support)
    relabel_examples = _blocking(AsyncClient.relabel_examples)
    rename_classes = _blocking(AsyncClient.rename_classes)
    predict = _blocking(AsyncClient.predict)
    predict_folder = _blocking(AsyncClient.predict_folder)
    evaluate = _blocking(AsyncClient.evaluate)
    evaluate_folder = _blocking(AsyncClient.evaluate_folder)
    classifiers = _blocking(AsyncClient.classifiers)
    classifier = _blocking(AsyncClient.classifier)
    examples = _blocking(AsyncClient.examples)
    thumbnail = _blocking(AsyncClient.thumbnail)
    delete = _blocking(AsyncClient.delete)
    promote = _blocking(AsyncClient.promote)
    edit = _blocking(AsyncClient.edit)
    rollback = _blocking(AsyncClient.rollback)
    export = _blocking(AsyncClient.export)
    models = _blocking(AsyncClient.models)
    reload_models = _blocking(AsyncClient.reload_models)
    limits = _blocking(AsyncClient.limits)
    live = _blocking(AsyncClient.live)
    ready = _blocking(AsyncClient.ready)

    def close(self) -> None:
        """Close the connections."""
        self._session.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def _checked_url(url: str) -> str:
    allowed = f"give the address of a server, like {DEFAULT_URL} or https://host/path"
    if not isinstance(cast("object", url), str):
        raise InputError(f"url is {url!r}; {allowed}")
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, UnicodeEncodeError) as error:
        raise InputError(f"url is {_without_user(url)!r}: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        raise InputError(f"url is {_without_user(url)!r}; {allowed}")
    if parsed.port is not None and not 0 < parsed.port < 65536:
        raise InputError(f"url is {_without_user(url)!r}; ports go from 1 to 65535")
    return url.rstrip("/")


def _without_user(url: str) -> str:
    """An address to show: without the name and the password that it may have for a proxy before the server."""
    return re.sub(r"(?<=//)[^/?#]*@", "", url, count=1)


def _headers(key: str | None, address: str) -> dict[str, str]:
    headers = {"User-Agent": f"comln-serve-client/{__version__}"}
    key = (key or "").strip()  # secrets are often read from files, which end with a line break
    if not key:
        return headers
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InputError("the API key has characters that no key has; give it as `comln-serve keys create` printed it")
    if httpx2.URL(address).userinfo:
        raise InputError(
            f"there is an API key, and a user in the address of {_without_user(address)}; each needs the header "
            "Authorization, so give only one of them"
        )
    return {**headers, "Authorization": f"Bearer {key}"}
