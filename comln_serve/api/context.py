"""What is known of the request being answered, gathered as it passes through the layers."""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from comln_serve.errors import ErrorCode


@dataclass
class RequestRecord:
    """One request, for metrics and logs. Nothing here is content of an image or a secret."""

    operation: Literal["adapt", "predict"] | None = None
    model: str | None = None
    images: int = 0
    stages_ms: Mapping[str, float] = field(default_factory=dict[str, float])
    error: ErrorCode | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    status: int | None = None


current: ContextVar[RequestRecord | None] = ContextVar("current", default=None)


def current_record() -> RequestRecord:
    """The record of the request under way; outside of one, a record that nobody reads."""
    return current.get() or RequestRecord()
