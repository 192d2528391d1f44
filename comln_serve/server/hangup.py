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
    """Hold back SIGHUP, which would end this process, until `on_hangup` handles it."""
    if hasattr(signal, "SIGHUP"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])


def reload_on_hangup(reload: Callable[[], object]) -> None:
    """Call `reload` on SIGHUP, on a thread. Its errors are logged."""

    def reload_or_log() -> None:
        try:
            reload()
        except ServiceError as error:
            logger.error("the models were not reloaded: %s", error.message)  # noqa: TRY400 - it says all
        except Exception:
            logger.exception("the models were not reloaded")

    on_hangup(lambda: Thread(target=reload_or_log, name="reload", daemon=True).start())


def on_hangup(call: Callable[[], None]) -> None:
    """Call `call` on SIGHUP. A SIGHUP because the terminal was closed stops this process instead, unless nohup
    started it.
    """
    if not hasattr(signal, "SIGHUP"):
        return
    has_terminal, stays = _has_terminal(), signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

    def hung_up(_signal: int, _frame: FrameType | None) -> None:
        nonlocal has_terminal
        if not has_terminal or _has_terminal():
            call()
            return
        has_terminal = False
        if not stays:
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGHUP, hung_up)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
