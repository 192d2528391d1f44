"""The sockets that the server listens on, and who can reach them."""

import errno
import os
import socket
from ipaddress import ip_address
from typing import Any

from comln_serve.errors import StartupError

# Connections that wait to be accepted.
BACKLOG = 2048

# Reasons for which asyncio stops to accept for a second.
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _Listening(socket.socket):
    """A listening socket that fails once, not again and again, while no file descriptor is free.

    asyncio accepts several connections at a time. For each that fails so it logs the error and tries again a second
    later, where again several fail: without this class there would be more of them every second.
    """

    _has_failed = False

    def accept(self) -> tuple[socket.socket, Any]:
        """As of any socket, but a call after a failure finds no connection; asyncio accepts no more at that time."""
        if self._has_failed:
            self._has_failed = False
            raise BlockingIOError
        try:
            return super().accept()
        except OSError as error:
            self._has_failed = error.errno in _OUT_OF_RESOURCES
            raise


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on every address of `host`; "" stands for all of the machine's.

    Args:
        port: 0 picks a free one, the same for all addresses.

    Raises:
        StartupError: the host has no address, or one that cannot be listened on.
    """
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise _refused(host, port, getattr(error, "strerror", None) or str(error)) from error
    listening: list[socket.socket] = []
    reasons: list[str] = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            listening.append(_listen(family, kind, protocol, (address[0], port, *address[2:])))
        except OSError as error:
            # A name may stand for an address of a family that this machine has switched off.
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise _refused(host, port, error.strerror or str(error)) from error
            reasons.append(error.strerror or str(error))
            continue
        port = listening[0].getsockname()[1]
    if not listening:
        raise _refused(host, port, "; ".join(reasons))
    return listening


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`, an address or a name."""
    try:
        found = socket.getaddrinfo(host or None, None, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return False  # listening will fail with the same error
    return all(ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


def network_address(family: int) -> str | None:
    """The address by which others reach this machine; None without a network of the `family` AF_INET or AF_INET6."""
    elsewhere = "192.0.2.1" if family == socket.AF_INET else "2001:db8::1"  # reserved for documentation
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))  # sends nothing; the system picks the address that it would send from
            found = str(probe.getsockname()[0])
    except OSError:
        return None
    return None if ip_address(found.partition("%")[0]).is_loopback else found


def _listen(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    # Not `socket.create_server`: its sockets name no protocol, and asyncio would leave Nagle's algorithm on for them.
    opened = _Listening(family, kind, protocol)
    try:
        if os.name == "posix":  # Windows would let another process listen on the same port
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # IPv4 has a socket of its own
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(address)
        opened.listen(BACKLOG)
    except BaseException:
        opened.close()
        raise
    return opened


def _refused(host: str, port: int, reason: str) -> StartupError:
    return StartupError(
        f"cannot listen on {host or 'every address'}, port {port}: {reason.lower()}. Choose another address (--host, "
        "--port), or stop what uses this one"
    )
