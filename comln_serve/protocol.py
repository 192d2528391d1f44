"""uvicorn's HTTP protocol: what is no request, or takes too long to become one, is answered in the
one error shape.
"""

import asyncio

from starlette.datastructures import State
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from comln_serve.api.intake import receive_timeout
from comln_serve.api.observation import answer_early
from comln_serve.errors import ErrorCode, ServiceError


class Protocol(HttpToolsProtocol):
    """One connection. The application is the `config.app` that uvicorn was given.

    uvicorn closes a connection that has been silent for five seconds after an answer. Whoever has
    not sent the head of a first request yet, trickles one, or goes on sending a body that has been
    refused, is waited for here, for `max_receive_seconds` and no longer.
    """

    _patience: asyncio.TimerHandle | None = None
    _head_begun = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:  # type: ignore[redundant-expr]
            self._wait_for_head()
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._head_begun = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_begun = False
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - ours says more
        """Answer and hang up; uvicorn calls it where its parser fails."""
        self._refuse(
            ServiceError(
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

    def _refuse(self, error: ServiceError) -> None:
        answer = answer_early(self._state.metrics, error)
        always = self.config.encoded_headers
        headers = [*answer.raw_headers, *always, (b"connection", b"close")]
        head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[answer.status_code] + head + b"\r\n" + bytes(answer.body))
        self.transport.close()
