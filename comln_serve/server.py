"""The process around the application: uvicorn, and how it ends."""

import logging
import os
import signal
import socket
import ssl
import time
from contextlib import suppress
from ipaddress import ip_address
from threading import Timer
from types import FrameType

import uvicorn
from fastapi import FastAPI

from comln_serve.api.browsers import AllowedHosts
from comln_serve.api.headers import STRICT_TRANSPORT
from comln_serve.errors import StartupError
from comln_serve.protocol import Protocol
from comln_serve.settings import Settings

logger = logging.getLogger(__name__)

# Beyond the time for requests: to close the store and let threads end.
_CLOSE_SECONDS = 5.0
_STARTUP_FAILURE = 3  # as uvicorn ends where it cannot listen


def check_tls(settings: Settings) -> None:
    """Open certificate and key as serving will, before anything else is loaded.

    Raises:
        StartupError: one cannot be read, or they do not belong together.
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
        # A passphrase would be asked for on a terminal, and nobody is there.
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
        SystemExit: the address cannot be listened on, or SIGTERM's own handler says so.
    """
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=Protocol,
        ws="none",  # no route speaks WebSocket
        # With threads that compute beside it, uvloop answers 2 % fewer predictions a second.
        loop="asyncio",
        log_config=None,  # ours, already in place
        access_log=False,  # ours has more to say
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
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        raise SystemExit(_STARTUP_FAILURE)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on `host`, an address or a name."""
    try:
        found = socket.getaddrinfo(host or None, None, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return False  # listening will fail, too, and say why
    return all(ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


def allowed_hosts(settings: Settings) -> AllowedHosts:
    """The names in `Host` that are answered: those of the setting, else by who can get here.

    What listens on loopback is called localhost. Elsewhere a name says nothing where keys are
    required, for no page knows one; without keys, names that public DNS may have are refused.
    """
    names = settings.host_names
    if names or is_loopback(settings.host):
        return AllowedHosts(names)
    return AllowedHosts(("*",) if settings.require_keys else (), without_dot=True)


class _Server(uvicorn.Server):
    """Drains in two steps.

    At once on SIGTERM `/health/ready` answers 503, and every answer closes its connection; requests
    are still accepted for `drain_delay_seconds`, in which load balancers learn of it. Then no more
    connections are accepted, and uvicorn gives requests under way `drain_seconds`. Whatever still
    runs after that is given up with the process: stored classifiers survive that.

    Ctrl-C, a second signal and a server that cannot get ready skip the first step.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI, settings: Settings) -> None:
        super().__init__(config)
        self._app, self._settings = app, settings
        self._leave_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """What uvicorn does on SIGINT and SIGTERM."""
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
        """Ten times a second; whether to stop serving."""
        if self._leave_at is not None and time.monotonic() >= self._leave_at:
            self._leave_at = None
            super().handle_exit(signal.SIGTERM, None)
        return await super().on_tick(counter)

    def _limit(self, seconds: float) -> None:
        """End the process by then: no thread that hangs may keep it."""

        def give_up() -> None:
            logger.error("giving up what still runs %g s after the signal to stop", seconds)
            os._exit(1)

        timer = Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
