"""Threads that begin together, and waiting for what others do."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")

SOON = 30  # seconds a test waits for what must come


def at_once(call: Callable[[Argument], Result], arguments: Sequence[Argument]) -> list[Result]:
    """The results of calls with each argument, which begin at the same moment, each on a thread of its own."""
    start = Barrier(len(arguments))

    def begin(argument: Argument) -> Result:
        start.wait()
        return call(argument)

    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(begin, arguments))


def wait_until(condition: Callable[[], bool], within: float = 2 * SOON) -> None:
    """Wait until it holds; fails where that takes far too long."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)
