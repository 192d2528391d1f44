"""Stage timings of a request."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

# Where set, told of every stage as it ends: its name, and when it began and ended, in nanoseconds
# since 1970.
on_stage: ContextVar[Callable[[str, int, int], None] | None] = ContextVar("on_stage", default=None)


class StageClock:
    """Wall-clock milliseconds by stage, and in total since the clock was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._stages: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Generator[None, None, None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            self._stages[name] = round(1e3 * seconds, 3)
            tell(name, seconds)

    @contextmanager
    def stages(
        self, first: str, second: str, share: Callable[[], float]
    ) -> Generator[None, None, None]:
        """Two stages that alternate: told of as if one had followed the other.

        Args:
            share: of the first; asked at the end.
        """
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            in_first = share() * seconds
            for name, part, ago in (
                (first, in_first, seconds - in_first),
                (second, seconds - in_first, 0.0),
            ):
                self._stages[name] = round(1e3 * part, 3)
                tell(name, part, ago)

    def milliseconds(self) -> dict[str, float]:
        """The stages so far, in order, and `total`."""
        return {**self._stages, "total": round(1e3 * (time.perf_counter() - self._began), 3)}


def tell(name: str, seconds: float, ago: float = 0.0) -> None:
    """Tell `on_stage` of a stage that took `seconds` and ended `ago` seconds before now."""
    told = on_stage.get()
    if told is not None:
        ended = time.time_ns() - round(1e9 * ago)
        told(name, ended - round(1e9 * seconds), ended)
