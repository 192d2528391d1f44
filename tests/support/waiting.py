"""Threads that begin together, and waiting for what others do."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any, TypeVar

import pytest

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


class Gate:
    """Stands before a call: whoever makes it waits there until the gate is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self._come, self._open = Event(), Event()
        call = getattr(owner, name)

        def wait(*arguments: Any, **options: Any) -> Any:
            self._come.set()
            assert self._open.wait(2 * SOON)
            return call(*arguments, **options)

        monkeypatch.setattr(owner, name, wait)

    def wait(self) -> None:
        """Until somebody waits there."""
        assert self._come.wait(2 * SOON)

    def open(self) -> None:
        """For those who wait, and all who come."""
        self._open.set()


def wait_until(condition: Callable[[], bool], within: float = 2 * SOON) -> None:
    """Wait until it holds; fails where that takes far too long."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)
