"""uvicorn's HTTP protocol with bounds: on the head of a request, on requests sent ahead of their
answers, and on the time for sending a head and for reading an answer. Refusals have the one error
shape.
"""

import asyncio
import socket
from typing import Any

from starlette.datastructures import State
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from comln_serve.api.intake import receive_timeout
from comln_serve.api.observation import answer_early
from comln_serve.errors import ErrorCode, ServiceError

MOST_HEAD_BYTES = 64 * 2**10
MOST_FIELDS = 100

# The parser cannot be stopped at the end of a request: what it is given at once bounds how many
# requests it finds there, 200 at most.
_SLICE = 4096


class _HeldReading(FlowControl):
    """uvicorn's flow control, which reads nothing while received bytes wait to be parsed."""

    unparsed = b""

    def resume_reading(self) -> None:
        if not self.unparsed:
            super().resume_reading()


class Protocol(HttpToolsProtocol):
    """One connection. The application is the `config.app` that uvicorn was given.

    uvicorn closes a connection that has been silent for five seconds after an answer. Whoever has
    not sent the head of a first request yet, trickles one, or goes on sending a body that has been
    refused, is waited for here, for `max_receive_seconds` and no longer. A client that does not
    read its answer is disconnected after `max_send_seconds`.

    A client may send requests ahead of their answers (pipelining). They are parsed no further than
    a slice beyond the request being answered, and no more is read from the client meanwhile.
    """

    _patience: asyncio.TimerHandle | None = None
    _head_begun = False
    _fields = 0  # of the head and trailer of the request being parsed
    _bytes_beside_body = 0  # parsed since a request began or its last byte of body
    _answering: RequestResponseCycle | None = None
    _refusal: ServiceError | None = None  # why the parser was stopped, where that was done here

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self._reading = _HeldReading(transport)
        limit_unread(transport, self._state.engine.settings.max_send_seconds)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived, unless a request that is all there waits for its answer."""
        if self.cycle is None or self.cycle.response_complete:  # type: ignore[redundant-expr]
            self._wait_for_head()
        data = self._reading.unparsed + data
        start = 0
        while start < len(data) and not (self._is_ahead() or self.transport.is_closing()):
            self._parse(data[start : start + _SLICE])
            start += _SLICE
        self._reading.unparsed = data[start:]
        if self._reading.unparsed:
            self.flow.pause_reading()

    def _is_ahead(self) -> bool:
        """Whether a request has been received entirely that is not answered yet."""
        newest = self.cycle
        return bool(self.pipeline) or (
            newest is not None  # type: ignore[redundant-expr]
            and not newest.response_complete
            and not newest.more_body
        )

    def _parse(self, data: bytes) -> None:
        self._bytes_beside_body += len(data)
        if self._bytes_beside_body > MOST_HEAD_BYTES:
            self._refuse(_head_too_large())
        else:
            super().data_received(data)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._reading.unparsed:
            self.loop.call_soon(self._parse_rest)

    def _parse_rest(self) -> None:
        rest, self._reading.unparsed = self._reading.unparsed, b""
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.data_received(rest)

    def on_message_begin(self) -> None:
        self._head_begun = True
        self._fields = self._bytes_beside_body = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called for each field of a head, and of the trailer after a chunked body."""
        self._fields += 1
        if self._fields > MOST_FIELDS:
            self._refusal = _head_too_large()
            raise self._refusal  # stops the parser; uvicorn then calls `send_400_response`
        if self._head_begun:  # trailers are not used, and uvicorn would add them to the head
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_begun = False
        self._stop_waiting()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._bytes_beside_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._bytes_beside_body = 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._reading.unparsed = b""
        self.pipeline.clear()
        self._stop_answering()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - ours says more
        """Answer and hang up; uvicorn calls it where its parser fails."""
        self._refuse(
            self._refusal
            or ServiceError(
                ErrorCode.MALFORMED_HTTP,
                "What was received is not a valid HTTP/1.1 request. Use an HTTP client, and http "
                "rather than https where nothing in front of the server speaks TLS.",
            )
        )

    @property
    def _state(self) -> State:
        return self.config.app.state  # type: ignore[union-attr]

    def _wait_for_head(self) -> None:
        if self._patience is None:
            allowed = self._state.engine.settings.max_receive_seconds
            self._patience = self.loop.call_later(allowed, self._give_up, allowed)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self, allowed: float) -> None:
        if self._head_begun:
            self._refuse(receive_timeout(allowed))
        else:
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _stop_answering(self) -> None:
        """Tell the request under way that its client is gone; uvicorn tells the newest only."""
        cycle = self._answering
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _refuse(self, error: ServiceError) -> None:
        cycle = self._answering
        begun = cycle is not None and cycle.response_started and not cycle.response_complete
        self._stop_answering()
        if not begun:  # inside of another answer this one would be taken for a part of it
            answer = answer_early(self._state.metrics, error)
            always = self.config.encoded_headers
            headers = [*answer.raw_headers, *always, (b"connection", b"close")]
            head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
            self.transport.write(
                STATUS_LINE[answer.status_code] + head + b"\r\n" + bytes(answer.body)
            )
        self.transport.close()


def limit_unread(transport: asyncio.BaseTransport, seconds: float) -> None:
    """Let the system drop a connection whose client takes none of what is sent for that long.

    Linux alone can. It counts from the last byte that the client took, and sees all that waits to
    be sent: in asyncio's buffers, under TLS, and once the transport has been told to close.
    """
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    connection: socket.socket | None = transport.get_extra_info("socket")
    if option is not None and connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, option, int(1000 * seconds))


def _head_too_large() -> ServiceError:
    return ServiceError(
        ErrorCode.HEAD_TOO_LARGE,
        f"The head of the request is over {MOST_HEAD_BYTES} bytes or {MOST_FIELDS} header fields. "
        "Send fewer or shorter headers, and images in the body.",
        allowed_bytes=MOST_HEAD_BYTES,
        allowed_fields=MOST_FIELDS,
    )
