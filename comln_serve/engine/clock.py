"""Stage timings of a request."""

import time
from collections.abc import Generator
from contextlib import contextmanager


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
            self._stages[name] = round(1e3 * (time.perf_counter() - began), 3)

    def milliseconds(self) -> dict[str, float]:
        """The stages so far, in order, and `total`."""
        return {**self._stages, "total": round(1e3 * (time.perf_counter() - self._began), 3)}
