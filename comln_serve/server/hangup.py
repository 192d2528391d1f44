"""SIGHUP: models are reloaded, or the server ends with its terminal."""

import logging
import os
import signal
from collections.abc import Callable
from threading import Thread
from types import FrameType

from comln_serve.errors import ServiceError

logger = logging.getLogger(__name__)


def on_hangup(act: Callable[[], None]) -> None:
    """Call `act` on SIGHUP; but stop the server if that tells that its terminal was closed."""
    if not hasattr(signal, "SIGHUP"):  # Windows
        return
    had_terminal = _has_terminal()

    def hung_up(_signal: int, _frame: FrameType | None) -> None:
        if had_terminal and not _has_terminal():
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            act()

    signal.signal(signal.SIGHUP, hung_up)


def reload_in_background(reload: Callable[[], object]) -> None:
    """Call `reload` on a thread, and log why it fails."""

    def run() -> None:
        try:
            reload()
        except ServiceError as error:
            logger.error("the models were not reloaded: %s", error.message)  # noqa: TRY400 - it says all
        except Exception:
            logger.exception("the models were not reloaded")

    Thread(target=run, name="reload", daemon=True).start()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
