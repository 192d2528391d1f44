"""Formats log records as lines: JSON for machines, text for people."""

import ctypes
import json
import logging
import sys
import warnings
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["auto", "json", "text"]

# The id of the current request, which is added to every log record.
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

# Fields of every record of this process.
_own_fields: dict[str, Any] = {}

_JSON = json.JSONEncoder(default=str)
_OWN = ("comln_serve", "uvicorn")
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127, 0x85, 0x2028, 0x2029)}


def configure_logs(level: str, log_format: LogFormat) -> None:
    """Send log records to standard error, one line each.

    Libraries log from level warning up: some log every byte they read at lower levels.

    Args:
        level: "debug", "info", "warning" or "error".
        log_format: "auto" is text where standard error is a terminal, else JSON.
    """
    handler = logging.StreamHandler()
    as_text = sys.stderr.isatty() if log_format == "auto" else log_format == "text"
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    # No format shows these, so that looking them up for every record would be wasted.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # Pillow's findings about a file go to its sender in the answer. Logged, they would let clients
    # fill the log.
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=r"PIL\.")
    _silence_libtiff()
    for name in _OWN:
        logging.getLogger(name).setLevel(level.upper())


def _silence_libtiff() -> None:
    """Let libtiff write nothing to standard error: one damaged file made it write 64 kB. Pillow raises its errors."""
    from PIL import Image  # noqa: PLC0415 - takes 30 ms, and not all who import this module read images

    # Looked up in the libraries that Pillow's own is linked to; where libtiff is a part of that, it may not be found.
    set_handler = getattr(ctypes.CDLL(Image.core.__file__), "TIFFSetErrorHandler", None)
    if set_handler is not None:
        set_handler(None)


def log_worker(worker: int | str) -> None:
    """Add the number or the task of this process, one of several of the server, to its log records."""
    _own_fields["worker"] = worker


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time, level, logger, message, request_id, fields, trace."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return _JSON.encode(line)


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message key=value ...`, and the trace on the lines after it."""

    def format(self, record: logging.LogRecord) -> str:
        fields = [f"{key}={_plain(value)}" for key, value in _fields(record).items()]
        # Control characters that a client sent must not forge a line of the log.
        message = record.getMessage().translate(_CONTROLS)
        line = " ".join([f"{_time(record)} {record.levelname:7} {record.name}: {message}", *fields])
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """The request id and the fields of `extra={"fields": {...}}`."""
    fields = dict(_own_fields)
    identifier = request_id.get()
    if identifier is not None:
        fields["request_id"] = identifier
    return {**fields, **getattr(record, "fields", {})}


def _plain(value: Any) -> str:
    if isinstance(value, str) and value.isascii() and value.isprintable() and " " not in value:
        return value
    return json.dumps(value, separators=(",", ":"), default=str)


def _time(record: logging.LogRecord) -> str:
    when = datetime.fromtimestamp(record.created, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
