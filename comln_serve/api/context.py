"""The record of the current request, which each layer fills in."""

import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from random import getrandbits
from typing import Literal

from starlette.datastructures import Headers
from starlette.types import Scope

from comln_serve.errors import ErrorCode

REQUEST_ID_HEADER = "X-Request-ID"
OPEN_INFERENCE = "/v2"
UNMATCHED = "unmatched"
# Routes that machines poll every few seconds. They ignore unknown query parameters, as some monitors add
# a changing one to bypass caches. (`/docs` and `/openapi.json` are no FastAPI routes and take any parameter, too.)
POLLED = frozenset({"/health/live", "/health/ready", "/metrics", "/v2/health/live", "/v2/health/ready"})
_WELL_FORMED = re.compile(r"[A-Za-z0-9._:=+/-]{1,128}")


@dataclass
class RequestRecord:
    """One request, for metrics, logs and traces. Holds neither image content nor secrets.

    Attributes:
        route: the template of its route, such as `/classifiers/{ref}`; `UNMATCHED` if no route matched.
        status: of the answer; 0: it ended without one, so far.
        seconds: from its head to the end of its answer, once it has ended.
        key: id of the request's API key, set once the key has been verified.
        classifier: id of the one that predicted, or that was made or changed.
        rejected: codes of the errors of images that a partial request went on without.
        open_inference: a request of the Open Inference Protocol, which has its own error shape.
        stages: name, start and end (nanoseconds since 1970) of each stage of work and of each wait
            ("queue"), in the order in which they ended.
    """

    # Not from the system's random numbers: fetching those lets go of the GIL, and the event loop waits to get it back.
    id: str = field(default_factory=lambda: f"{getrandbits(128):032x}")
    method: str = "-"
    route: str = UNMATCHED
    status: int = 0
    seconds: float = 0.0
    key: str | None = None
    operation: Literal["adapt", "predict"] | None = None
    model: str | None = None
    classifier: str | None = None
    images: int = 0
    rejected: Sequence[ErrorCode] = ()
    stages_ms: Mapping[str, float] = field(default_factory=dict[str, float])
    stages: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    trace_id: str | None = None
    error: ErrorCode | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    bug: Exception | None = None
    open_inference: bool = False


current: ContextVar[RequestRecord | None] = ContextVar("current", default=None)


def current_record() -> RequestRecord:
    """The record of the current request; outside of a request, a new one that nobody reads."""
    return current.get() or RequestRecord()


def new_record(scope: Scope) -> RequestRecord:
    """The record of a request that begins. Its id is the client's if that is safe to log, else a new one."""
    record = RequestRecord(method=scope["method"])
    record.open_inference = f"{scope['path']}/".startswith(f"{OPEN_INFERENCE}/")
    given = Headers(scope=scope).getlist(REQUEST_ID_HEADER)
    if len(given) == 1 and _WELL_FORMED.fullmatch(given[0]):
        record.id = given[0]
    return record
