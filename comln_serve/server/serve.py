"""Runs the application in uvicorn, and drains it before it ends."""

import logging
import os
import signal
import socket
import ssl
import time
from ipaddress import ip_address
from threading import Timer
from types import FrameType

import uvicorn
from fastapi import FastAPI

from comln_serve.api.browsers.guard import AllowedHosts
from comln_serve.api.browsers.headers import STRICT_TRANSPORT
from comln_serve.configuration.settings import Settings
from comln_serve.errors import StartupError
from comln_serve.server.protocol import Protocol

logger = logging.getLogger(__name__)

# Time after draining to close the store and end the threads.
_CLOSE_SECONDS = 5.0


def check_tls(settings: Settings) -> None:
    """Check that certificate and key can be used, before anything else is loaded.

    Raises:
        StartupError: one cannot be read, or they do not match.
    """
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is None or key is None:
        return
    for path in (certificate, key):
        try:
            path.read_bytes()
        except OSError as error:
            raise StartupError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        # The callback prevents OpenSSL from asking for a passphrase on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, lambda: "")
    except ssl.SSLError as error:
        raise StartupError(
            f"--tls-certificate {certificate} and --tls-key {key} cannot be used "
            f"({error.reason or error}). Give PEM files: a certificate, and the private key that "
            "belongs to it, without a passphrase"
        ) from error


def serve(app: FastAPI, settings: Settings) -> None:
    """Serve until a signal, then drain.

    Raises:
        SystemExit: the server cannot listen on the address, or SIGTERM's handler exits.
    """
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=Protocol,
        ws="none",  # no route speaks WebSocket
        # Beside computing threads, uvloop answers 2 % fewer predictions a second.
        loop="asyncio",
        log_config=None,  # `configure_logs` has set up logging
        access_log=False,  # `Observation` logs requests
        timeout_graceful_shutdown=settings.drain_seconds,
        server_header=False,
        headers=[STRICT_TRANSPORT] if settings.tls_certificate else [],
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )
    if not (settings.require_keys or is_loopback(settings.host)):
        logger.warning(
            "THE SERVER LISTENS ON %s WITHOUT AUTHENTICATION: whoever can reach it can use, see "
            "and delete every classifier. Require keys (--require-keys), let only a proxy that "
            "authenticates reach it, or listen on 127.0.0.1 (--host)",
            settings.host or "every address",
        )
    server = _Server(config, app, settings)
    try:
        server.run()
    except KeyboardInterrupt:
        pass
    except SystemExit:
        # Uvicorn exits so when it cannot listen, and logs only the system's word for it.
        if not (server.started or server.lifespan.should_exit):
            logger.error(  # noqa: TRY400 - the traceback would be of the exit
                "the server could not listen on %s port %d, for the reason above; choose another address (--host, "
                "--port), or stop what uses this one",
                settings.host or "every address",
                settings.port,
            )
        raise


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`, an address or a name."""
    try:
        found = socket.getaddrinfo(host or None, None, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return False  # listening will fail with the same error
    return all(ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


def allowed_hosts(settings: Settings) -> AllowedHosts:
    """The `Host` names that the server answers: the setting's, or a default.

    On loopback, the default is localhost and addresses. On other addresses it is any name if keys
    are required, as no foreign page has a key; else names that cannot be in public DNS.
    """
    names = settings.host_names
    if names or is_loopback(settings.host):
        return AllowedHosts(names)
    return AllowedHosts(("*",) if settings.require_keys else (), without_dot=True)


class _Server(uvicorn.Server):
    """Drains in two steps.

    On SIGTERM, `/health/ready` answers 503 at once, and every answer closes its connection. The
    server still accepts requests for `drain_delay_seconds`, so that load balancers notice. Then it
    accepts no more connections, and uvicorn gives running requests `drain_seconds`. The process
    then ends with whatever still runs: stored classifiers survive that.

    Ctrl-C, a second signal and an engine that failed to warm skip the first step.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI, settings: Settings) -> None:
        super().__init__(config)
        self._app, self._settings = app, settings
        self._leave_at: float | None = None
        self._announced = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start to drain. uvicorn calls this on SIGINT and SIGTERM."""
        first = not self._app.state.draining
        self._app.state.draining = True
        waits = first and sig == signal.SIGTERM and self._app.state.engine.failure is None
        delay = self._settings.drain_delay_seconds if waits else 0.0
        if first:
            self._limit(delay + self._settings.drain_seconds + _CLOSE_SECONDS)
        if delay:
            self._leave_at = time.monotonic() + delay
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop serving. uvicorn calls this ten times a second."""
        if not self._announced and self._app.state.engine.ready:
            self._announced = True
            logger.info("ready; the page is %s", self._address())
        if self._leave_at is not None and time.monotonic() >= self._leave_at:
            self._leave_at = None
            super().handle_exit(signal.SIGTERM, None)
        return await super().on_tick(counter)

    def _address(self) -> str:
        """Where this machine's browser finds the page."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        host = "localhost" if ip_address(host.partition("%")[0]).is_unspecified else host
        scheme = "https" if self._settings.tls_certificate else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/"

    def _limit(self, seconds: float) -> None:
        """End the process after `seconds` at the latest, even if a thread hangs."""

        def give_up() -> None:
            logger.error("giving up what still runs %g s after the signal to stop", seconds)
            os._exit(1)

        timer = Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
