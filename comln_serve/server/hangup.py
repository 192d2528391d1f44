"""Reloads the models on SIGHUP."""

import logging
import os
import signal
from collections.abc import Callable
from threading import Thread
from types import FrameType

from comln_serve.errors import ServiceError

logger = logging.getLogger(__name__)


def hold_hangups() -> None:
    """Let SIGHUP wait until `on_hangup`: before, it would end this process."""
    if hasattr(signal, "SIGHUP"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])


def reload_on_hangup(reload: Callable[[], object]) -> None:
    """Call `reload` on SIGHUP, on a thread. Its errors are logged."""
    on_hangup(lambda: Thread(target=_reload, args=(reload,), name="reload", daemon=True).start())


def on_hangup(call: Callable[[], None]) -> None:
    """Call it on SIGHUP; but stop this process if that tells that its terminal was closed."""
    if not hasattr(signal, "SIGHUP"):
        return
    had_terminal = _has_terminal()

    def hung_up(_signal: int, _frame: FrameType | None) -> None:
        if had_terminal and not _has_terminal():
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            call()

    signal.signal(signal.SIGHUP, hung_up)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])


def _reload(reload: Callable[[], object]) -> None:
    try:
        reload()
    except ServiceError as error:
        logger.error("the models were not reloaded: %s", error.message)  # noqa: TRY400 - it says all
    except Exception:
        logger.exception("the models were not reloaded")


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
