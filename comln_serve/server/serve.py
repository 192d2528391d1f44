"""Runs the application in uvicorn, and drains it before it ends."""

import logging
import os
import signal
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from threading import Timer
from types import FrameType

import uvicorn
from fastapi import FastAPI
from starlette.datastructures import State

from comln_serve.api.browsers import AllowedHosts
from comln_serve.configuration.settings import Settings
from comln_serve.counts import Count
from comln_serve.errors import StartupError
from comln_serve.machine import usable_cpus
from comln_serve.server.listening import BACKLOG, is_loopback, network_address
from comln_serve.server.protocol import Protocol

logger = logging.getLogger(__name__)

# For a server that ends TLS itself: browsers use only https with it for a year. A proxy that ends TLS sets this header.
_STRICT_TRANSPORT = ("Strict-Transport-Security", "max-age=31536000")

# Time after draining to close the store and end the threads.
_CLOSE_SECONDS = 5.0

# Connections that asyncio accepts at once. Of processes that share the socket each accepts few, so that they share the
# connections, too.
_ACCEPTED_AT_ONCE, _ACCEPTED_OF_SHARED = 64, 4
_TICKS_BETWEEN_REFRESHES = 5  # of metrics; half a second
_TICKS_BETWEEN_LOOKS = 50  # at the certificate's files; five seconds


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
            f"--tls-certificate {certificate} and --tls-key {key} cannot be used ({error.reason or error}). Give PEM "
            "files: a certificate, and the private key that belongs to it, without a passphrase"
        ) from error


def _tls_files_changed_at(settings: Settings) -> list[int] | None:
    """When certificate and key were written; None while one of the files does not exist."""
    with suppress(OSError):
        return [path.stat().st_mtime_ns for path in (settings.tls_certificate, settings.tls_key) if path is not None]
    return None


def serve(app: FastAPI, sockets: list[socket.socket]) -> None:
    """Serve what connects to the sockets until a signal, then drain.

    Raises:
        SystemExit: SIGTERM's handler exits.
    """
    settings: Settings = app.state.engine.settings
    config = uvicorn.Config(
        app,
        backlog=_ACCEPTED_AT_ONCE if app.state.engine.shared.processes == 1 else _ACCEPTED_OF_SHARED,
        http=Protocol,
        ws="none",  # no route speaks WebSocket
        # Beside computing threads, uvloop answers 2 % fewer predictions a second.
        loop="comln_serve.server.event_loop:new_event_loop",
        log_config=None,  # `configure_logs` has set up logging
        access_log=False,  # `Observation` logs requests
        timeout_graceful_shutdown=settings.drain_seconds,
        server_header=False,
        headers=[_STRICT_TRANSPORT] if settings.tls_certificate else [],
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )
    with suppress(KeyboardInterrupt):
        _Server(config, app.state).run(sockets)


def warn_of_settings(settings: Settings, workers: int) -> None:
    """Log a warning if others can reach the server and need no key, and of settings that contradict each other.

    None is refused: a server that limits bodies only still works for smaller images.
    """
    if not (settings.require_keys or is_loopback(settings.host)):
        logger.warning(
            "THE SERVER LISTENS ON %s WITHOUT AUTHENTICATION: whoever can reach it can use, see "
            "and delete every classifier. Require keys (--require-keys), let only a proxy that "
            "authenticates reach it, or listen on 127.0.0.1 (--host)",
            settings.host or "every address",
        )
    if settings.max_image_bytes > settings.max_body_bytes:
        logger.warning(
            "max_image_bytes (%d) is more than max_body_bytes (%d): no image larger than a body can arrive. Raise "
            "max_body_bytes, or lower max_image_bytes, which clients are told",
            settings.max_image_bytes,
            settings.max_body_bytes,
        )
    if settings.embedding_process == "on" and workers == 1:
        logger.warning("embedding_process is on, which is for several workers: the only one embeds by itself")
    if workers > usable_cpus():
        logger.warning(
            "%d workers on %d usable CPUs: they wait for each other, and each takes memory. Start with --workers auto, "
            "or fewer",
            workers,
            usable_cpus(),
        )


def addresses(settings: Settings, sockets: Sequence[socket.socket]) -> str:
    """The URL of the server's page; where it listens on every address, for this machine and for others."""
    host, port = sockets[0].getsockname()[:2]
    scheme = "http" if settings.tls_certificate is None else "https"

    def url(host: str) -> str:
        return f"{scheme}://[{host}]:{port}/" if ":" in host else f"{scheme}://{host}:{port}/"

    if not ip_address(host.partition("%")[0]).is_unspecified:
        return url(host)
    families = sorted({listening.family for listening in sockets})  # IPv4 first
    found = next((known for family in families if (known := network_address(family)) is not None), None)
    return url("localhost") if found is None else f"{url('localhost')} and, on the network, at {url(found)}"


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

    def __init__(self, config: uvicorn.Config, state: State) -> None:
        """`state`: of the application."""
        super().__init__(config)
        self._state = state
        self._settings: Settings = state.engine.settings
        self._leave_at: float | None = None
        self._tls_files = _tls_files_changed_at(self._settings)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start to drain. uvicorn calls this on SIGINT and SIGTERM."""
        first = not self._state.draining
        self._state.draining = True
        waits = first and sig == signal.SIGTERM and self._state.engine.failure is None
        delay = self._settings.drain_delay_seconds if waits else 0.0
        if first:
            self._limit(delay + self._settings.drain_seconds + _CLOSE_SECONDS)
        if delay:
            self._leave_at = time.monotonic() + delay
        else:
            super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve. uvicorn has then told the system of the few connections above; more may wait."""
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(BACKLOG)

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop serving. uvicorn calls this ten times a second."""
        self._report(counter)
        if counter % _TICKS_BETWEEN_LOOKS == 0:
            self._renew_certificate()
        if self._leave_at is not None and time.monotonic() >= self._leave_at:
            self._leave_at = None
            super().handle_exit(signal.SIGTERM, None)
        return await super().on_tick(counter)

    def _report(self, counter: int) -> None:
        """Tell the other processes of this server that this one is alive, and drain if it is an orphan."""
        shared = self._state.engine.shared
        shared.set(Count.ALIVE, int(1000 * time.monotonic()))
        if shared.processes > 1:
            if counter % _TICKS_BETWEEN_REFRESHES == 0:
                self._state.metrics.refresh()
            if os.getppid() != shared.parent and not self._state.draining:
                logger.error("the process that started this one has ended: draining")
                self.handle_exit(signal.SIGTERM, None)

    def _renew_certificate(self) -> None:
        """Take a new certificate for new connections, where its files have changed and belong together."""
        settings, context = self._settings, self.config.ssl
        before, self._tls_files = self._tls_files, _tls_files_changed_at(settings)
        if context is None or settings.tls_certificate is None or self._tls_files == before:
            return
        try:
            check_tls(settings)
            context.load_cert_chain(settings.tls_certificate, settings.tls_key, lambda: "")  # as in the check
        except (StartupError, OSError) as error:
            logger.warning("the certificate stays as it was until its files change again: %s", error)
        else:
            logger.info("new connections have the certificate that %s holds now", settings.tls_certificate)

    def _limit(self, seconds: float) -> None:
        """End the process after `seconds` at the latest, even if a thread hangs."""

        def give_up() -> None:
            logger.error("giving up what still runs %g s after the signal to stop", seconds)
            os._exit(1)

        timer = Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
