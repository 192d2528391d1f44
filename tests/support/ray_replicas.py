"""Stand-ins for embedding replicas. A module of its own: Ray's processes import it, and little."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from comln_serve.errors import ErrorCode, ServiceError


class Fragile:
    """Embeds, but a number of calls is its death, or that of another like it."""

    def __init__(self, calls: str, deaths: int) -> None:
        self._calls, self._deaths = Path(calls), deaths

    async def embed(self, embedder_sha256: str, images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        with self._calls.open("a") as file:
            file.write(".")
        if self._calls.stat().st_size <= self._deaths:
            os._exit(1)
        if embedder_sha256 == "refused":
            raise ServiceError(ErrorCode.QUEUE_TIMEOUT, "It waited.", allowed_seconds=1.5)
        return images[:, 0, 0, :1].astype(np.float32)


class Slow:
    """Says in a file that it has begun, and ends when there is another."""

    def __init__(self, begun: str, gate: str) -> None:
        self._begun, self._gate = Path(begun), Path(gate)

    def embed(self) -> str:
        self._begun.touch()
        while not self._gate.exists():
            time.sleep(0.01)
        return "done"
