"""uvicorn's HTTP protocol, with what is not HTTP answered in the one error shape."""

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from comln_serve.api.observation import answer_malformed


class Protocol(HttpToolsProtocol):
    """One connection. The application is the `config.app` that uvicorn was given."""

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - ours says more
        """Answer and hang up; uvicorn calls it where its parser fails."""
        answer = answer_malformed(self.config.app.state.metrics)  # type: ignore[union-attr]
        headers = [*answer.raw_headers, (b"connection", b"close")]
        head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[answer.status_code] + head + b"\r\n" + bytes(answer.body))
        self.transport.close()
