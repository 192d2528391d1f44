"""uvicorn's HTTP protocol with limits: on the size of a request's head, on pipelined requests, and
on the time to send a head and to read an answer. Refusals have the project's error shape.
"""

import asyncio
import socket
import sys
from typing import Any, NoReturn

from starlette.datastructures import State
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from comln_serve.api.observe.observation import answer_early
from comln_serve.api.receive.intake import announces_body, receive_timeout
from comln_serve.errors import ErrorCode, ServiceError

MOST_HEAD_BYTES = 64 * 2**10
MOST_FIELDS = 100

# Bytes parsed at once. The parser cannot be stopped at the end of a request, so this limits how
# many requests it finds at once: 200 at most.
_SLICE = 4096
# Pieces of a body after which other connections get their turn: a slice may hold hundreds, of one byte each.
_MOST_PIECES = 100

_ESTABLISHED = 1  # a state of a TCP connection; its client has not closed it

_CONTINUE = b"HTTP/1.1 100 "  # asks for the body; the head of the answer comes later


class _HeldReading(FlowControl):
    """uvicorn's flow control, but it does not resume reading while received bytes are unparsed."""

    unparsed = b""

    def resume_reading(self) -> None:
        if not self.unparsed:
            super().resume_reading()


class _Answer:
    """What one request's answer is written to: sends the head with the first of the body, in one packet.

    uvicorn writes them one after the other; each costs a call of the system and wakes the client.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None  # what is held back of it; None: it has not come yet
        self.is_closing, self.close = transport.is_closing, transport.close

    def write(self, data: bytes) -> None:
        if self._head is None:
            if data.startswith(_CONTINUE):
                self._transport.write(data)
            else:
                self._head = data
        else:
            self._transport.write(self._head + data)
            self._head = b""


class Protocol(HttpToolsProtocol):
    """One connection. The application is the `config.app` that uvicorn was given.

    uvicorn closes a connection that is silent for five seconds after an answer. This class adds a limit of
    `max_receive_seconds` for clients that never send the head of a request, trickle one, or keep sending a body that
    was refused. A client that does not read its answer, or only trickles it, is disconnected after `max_send_seconds`.

    A client may send requests before earlier ones are answered (pipelining). At most a slice beyond the request being
    answered is parsed, and no more is read from the client meanwhile. A body in tiny chunks, each of which costs as
    much time as a large one, is parsed a slice at a time, too, in turn with the other connections.
    """

    _patience: asyncio.TimerHandle | None = None
    _slow_reader: asyncio.TimerHandle | None = None
    _head_begun = False
    _fields = 0  # of the head and trailer of the request being parsed
    _bytes_beside_body = 0  # parsed since a request began or a piece of body arrived
    _pieces = 0  # of bodies, parsed in this turn
    _next_turn: asyncio.Handle | None = None
    _answering: RequestResponseCycle | None = None
    _refusal: ServiceError | None = None  # set if a callback stopped the parser

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self._reading = _HeldReading(transport)
        self._state.pace.connected()
        limit_unread(transport, self._state.engine.settings.max_send_seconds)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived, unless a complete request waits for its answer."""
        if self.cycle is None or self.cycle.response_complete:  # type: ignore[redundant-expr]
            self._wait_for_head()
        data = self._reading.unparsed + data
        start = self._pieces = 0
        while (
            start < len(data) and self._pieces < _MOST_PIECES and not (self._is_ahead() or self.transport.is_closing())
        ):
            self._parse(data[start : start + _SLICE])
            start += _SLICE
        self._reading.unparsed = data[start:]
        if self._reading.unparsed:
            self.flow.pause_reading()
            if not self._is_ahead():
                self._parse_rest_soon()

    def _is_ahead(self) -> bool:
        """Whether a complete request has not been answered yet."""
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

    def pause_writing(self) -> None:
        """Called when what waits to be sent is more than asyncio's high-water mark, 64 KiB."""
        super().pause_writing()
        self._slow_reader = self.loop.call_later(self._state.engine.settings.max_send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Called when only 16 KiB of that are left."""
        self._stop_writing_timer()
        super().resume_writing()

    def _stop_writing_timer(self) -> None:
        if self._slow_reader is not None:
            self._slow_reader.cancel()
            self._slow_reader = None

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._reading.unparsed:
            self._parse_rest_soon()

    def _parse_rest_soon(self) -> None:
        if self._next_turn is None:
            self._next_turn = self.loop.call_soon(self._parse_rest)

    def _parse_rest(self) -> None:
        self._next_turn = None
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
            self._stop_parser(_head_too_large())
        if self._head_begun:  # trailers are not used, and uvicorn would add them to the head
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if sum(name == b"host" for name, _ in self.headers) > 1:
            self._stop_parser(
                ServiceError(
                    ErrorCode.MALFORMED_HTTP,
                    "The request has several header fields Host, so it is not known for which server it is. Send one.",
                )
            )
        if announces_body(self.headers) and self.parser is not None and self.parser.should_upgrade():
            # The parser would take the request to end here, and lose its body.
            self._stop_parser(
                ServiceError(
                    ErrorCode.MALFORMED_HTTP,
                    "The request asks to upgrade to another protocol (field Upgrade); this server speaks HTTP/1.1 "
                    "only. Switch that off: curl --http1.1, in Java "
                    "HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).",
                )
            )
        self._head_begun = False
        self._stop_waiting()
        super().on_headers_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: Java's client asks to upgrade in every request, and uvicorn would advise to install packages."""

    def on_body(self, body: bytes) -> None:
        self._bytes_beside_body = 0
        self._pieces += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._bytes_beside_body = 0
        if announces_body(self.headers):
            self._drop_if_left()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_writing_timer()
        self._reading.unparsed = b""
        self.pipeline.clear()
        self._stop_answering()
        super().connection_lost(exc)

    def _stop_parser(self, refusal: ServiceError) -> NoReturn:
        """Have uvicorn call `send_400_response`, which sends the refusal."""
        self._refusal = refusal
        raise refusal

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - replaced by an error that says more
        """Answer and close the connection. uvicorn calls this when its parser fails."""
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
        if announces_body(cycle.scope["headers"]) and self._drop_if_left():
            gone = ServiceError(
                ErrorCode.CLIENT_GONE, "The client closed its connection before the request was taken up."
            )
            answer_early(self._state.metrics, gone)  # counts it
            return
        self._answering = cycle
        if cycle.scope["method"] != "HEAD":  # to which nothing is written after the head
            cycle.transport = _Answer(self.transport)  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    def _drop_if_left(self) -> bool:
        """Drop the connection, with all that is under way for it, if its client has closed it. Returns whether it has.

        asyncio notices only once it has read everything, and it does not read on while another request waits behind
        the one in work. Linux only.
        """
        connection: socket.socket | None = self.transport.get_extra_info("socket")
        if sys.platform != "linux" or connection is None or self.transport.is_closing():
            return False
        # The first byte of the struct. Asked so and not by `poll`, which lets go of the GIL.
        state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        if state == _ESTABLISHED:
            return False
        self.transport.abort()
        return True

    def _stop_answering(self) -> None:
        """Tell the running request that its client is gone; uvicorn tells only the newest one."""
        cycle = self._answering
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _refuse(self, error: ServiceError) -> None:
        cycle = self._answering
        begun = cycle is not None and cycle.response_started and not cycle.response_complete
        self._stop_answering()
        if not begun:  # within another answer, the client would take this one for its body
            answer = answer_early(self._state.metrics, error)
            always = self.config.encoded_headers
            headers = [*answer.raw_headers, *always, (b"connection", b"close")]
            head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
            self.transport.write(STATUS_LINE[answer.status_code] + head + b"\r\n" + bytes(answer.body))
        self.transport.close()


def limit_unread(transport: asyncio.BaseTransport, seconds: float) -> None:
    """Make the system drop a connection whose client acknowledges no sent byte for `seconds`.

    Linux only. Counts from the last acknowledged byte. Also covers data in asyncio's buffers, data
    under TLS, and a transport that is closing.
    """
    connection: socket.socket | None = transport.get_extra_info("socket")
    if hasattr(socket, "TCP_USER_TIMEOUT") and connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))
        # Else the system buffers megabytes, and takes more only once a third of them are sent.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 2**17)


def _head_too_large() -> ServiceError:
    return ServiceError(
        ErrorCode.HEAD_TOO_LARGE,
        f"The head of the request is over {MOST_HEAD_BYTES} bytes or {MOST_FIELDS} header fields. "
        "Send fewer or shorter headers, and images in the body.",
        allowed_bytes=MOST_HEAD_BYTES,
        allowed_fields=MOST_FIELDS,
    )
