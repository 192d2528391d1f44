"""What a call asks of its client: to send a request, to wait, to do something that blocks.

The calls of the client are generators of these steps. `Client` carries the steps out and waits, `AsyncClient`
awaits them; so both have the same calls, written once.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import httpx2

_T = TypeVar("_T")


@dataclass(frozen=True)
class Request:
    """A request to the server.

    Attributes:
        parameters: of the query; one with several values is repeated.
        fields: of a form.
        images: image files of the form.
        content: of a JSON body, where there is no form.
        file: the body as it is, where there is neither.
        repeatable: sending it twice has the effect of sending it once.
    """

    method: str
    path: str
    parameters: Mapping[str, str | int | Sequence[int]] = field(default_factory=dict[str, str | int | Sequence[int]])
    fields: Mapping[str, str | Sequence[str]] = field(default_factory=dict[str, str | Sequence[str]])
    images: Sequence[bytes] = ()
    content: Mapping[str, Any] = field(default_factory=dict[str, Any])
    file: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    repeatable: bool = True

    def arguments(self) -> dict[str, Any]:
        """The arguments of `build_request` of an HTTP client."""
        found: dict[str, Any] = {"method": self.method, "url": self.path, "headers": dict(self.headers)}
        if self.parameters:
            found["params"] = dict(self.parameters)
        if self.images:
            found["data"] = dict(self.fields)
            found["files"] = [("images", ("image", data)) for data in self.images]
        elif self.content:
            found["json"] = dict(self.content)
        elif self.file:
            found["content"] = self.file
            found["headers"] |= {"Content-Type": "application/octet-stream"}
        return found


@dataclass(frozen=True)
class Send:
    """Send a request; results in the answer, of any status, or raises httpx2.TransportError."""

    request: Request


@dataclass(frozen=True)
class Wait:
    """Wait for some seconds."""

    seconds: float


@dataclass(frozen=True)
class Do:
    """Call something that blocks; results in what it returns, or raises what it raises."""

    call: Callable[[], Any]


Step: TypeAlias = Send | Wait | Do
Flow: TypeAlias = Generator[Step, Any, _T]
"""A call under way, with a result of type _T."""


def send(request: Request) -> Flow[httpx2.Response]:
    """`Send` with the type of its result."""
    answer: httpx2.Response = yield Send(request)
    return answer


def do(call: Callable[[], _T]) -> Flow[_T]:
    """`Do` with the type of its result."""
    result: _T = yield Do(call)
    return result


def flag_text(flag: bool) -> str:
    """A flag as a form or a query has it."""
    return "true" if flag else "false"
