"""Times the stages of a request."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

# Called, if set, as each stage ends, with its name, start and end (nanoseconds since 1970).
on_stage: ContextVar[Callable[[str, int, int], None] | None] = ContextVar("on_stage", default=None)


class StageClock:
    """Wall-clock milliseconds of each stage, and since the clock was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._stages: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Generator[None, None, None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._note(name, time.perf_counter() - began)

    @contextmanager
    def stages(self, first: str, second: str, share: Callable[[], float]) -> Generator[None, None, None]:
        """Time two interleaved stages and report them as if the second had followed the first.

        Args:
            share: returns the first stage's share of the time; called at the end.
        """
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            in_first = share() * seconds
            self._note(first, in_first, ago=seconds - in_first)
            self._note(second, seconds - in_first)

    def milliseconds(self) -> dict[str, float]:
        """The stages so far, in order, and `total`."""
        return {**self._stages, "total": round(1e3 * (time.perf_counter() - self._began), 3)}

    def _note(self, name: str, seconds: float, ago: float = 0.0) -> None:
        self._stages[name] = round(1e3 * seconds, 3)
        tell_stage(name, seconds, ago)


def tell_stage(name: str, seconds: float, ago: float = 0.0) -> None:
    """Pass to `on_stage` a stage that took `seconds` and ended `ago` seconds before now."""
    callback = on_stage.get()
    if callback is not None:
        ended = time.time_ns() - round(1e9 * ago)
        callback(name, ended - round(1e9 * seconds), ended)
