"""What a server in this process logs."""

import io
import json
import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from comln_serve.logs import JsonFormatter


class Lines:
    """The lines that it would have written to standard error, each an object of JSON."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    def of_requests(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.text.splitlines()]
        return [line for line in lines if line["logger"] == "comln_serve.requests"]


@contextmanager
def logged() -> Generator[Lines, None, None]:
    """All that is logged in the block, debugging included."""
    lines = Lines()
    handler = logging.StreamHandler(lines.stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("comln_serve")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
