"""Waiting for what other threads do."""

import time
from collections.abc import Callable

SOON = 30  # seconds a test waits for what must come


def wait_until(condition: Callable[[], bool], within: float = 2 * SOON) -> None:
    """Wait until it holds; fails where that takes far too long."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)
