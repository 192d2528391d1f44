"""The log has one line for each request, with what an operator needs and nothing that a client sent."""

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from comln_serve.logs import JsonFormatter, TextFormatter
from tests.support.image_files import colour_support
from tests.support.log import Lines, logged
from tests.support.messages import RED, adapt_form, b64, engine_of, predict_form, raw

GENERATED = re.compile(r"[0-9a-f]{32}")


@pytest.fixture
def lines(client: TestClient) -> Iterator[Lines]:
    with logged() as lines:
        yield lines


def test_a_line_says_what_happened(client: TestClient, lines: Lines) -> None:
    began = datetime.now(UTC)
    adapted = client.post("/adapt", **adapt_form(colour_support(2), name="known"))
    predicted = client.post("/predict", **predict_form(RED))
    refused = client.get("/classifiers/absent")
    of_adapt, of_predict, of_refused = lines.of_requests()

    assert of_adapt.pop("stages_ms") == adapted.json()["timings_ms"]
    assert of_adapt.pop("request_id") == adapted.headers["x-request-id"]
    assert began <= datetime.fromisoformat(of_adapt.pop("time")) <= datetime.now(UTC)
    assert adapted.json()["timings_ms"]["total"] <= of_adapt.pop("ms") < 30_000
    assert of_adapt.pop("bytes_in") == len(adapted.request.content)
    assert of_adapt == {
        "level": "info",
        "logger": "comln_serve.requests",
        "message": "POST /adapt 201",
        "method": "POST",
        "route": "/adapt",
        "status": 201,
        "bytes_out": len(adapted.content),
        "images": 6,
        "model": "tiny",
        "classifier": adapted.json()["id"],
    }
    assert of_predict["images"] == 1
    assert of_predict["classifier"] == adapted.json()["id"]
    assert of_predict["stages_ms"] == predicted.json()["timings_ms"]
    assert (of_refused["route"], of_refused["error"]) == ("/classifiers/{ref}", "classifier_not_found")
    assert of_refused["request_id"] == refused.json()["error"]["request_id"]
    assert "images" not in of_refused


def test_nothing_a_client_sent_is_logged(client: TestClient, lines: Lines) -> None:
    client.post("/adapt", **adapt_form([(RED, "secretlabel"), (RED, "other")], name="secretname"))
    client.get("/classifiers/secretid?token=secrettoken", headers={"Authorization": "secretkey"})
    client.get("/secretpath")
    client.post("/predict", **raw(b'{"secretfield": 1}'))
    client.post("/predict", **predict_form(b"secretimage", classifier="secretname"))
    assert len(lines.of_requests()) == 5
    written = lines.text
    assert "secret" not in written
    assert b64(RED)[:20] not in written


def test_a_bug_is_logged_once_with_its_trace(client: TestClient, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        logging.getLogger("comln_serve.engine").warning("on the way")
        raise ZeroDivisionError("told nobody")

    monkeypatch.setattr(engine_of(client), "adapt", broken)
    answer = client.post("/adapt", headers={"X-Request-ID": "mine-1"}, **adapt_form())
    assert answer.status_code == 500
    assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"] == "mine-1"
    assert "told nobody" not in answer.text
    (line,) = lines.of_requests()
    assert (line["level"], line["status"], line["error"]) == ("error", 500, "internal")
    assert line["request_id"] == "mine-1"
    assert "ZeroDivisionError: told nobody" in line["trace"]
    assert lines.text.count("Traceback") == 1
    # What deeper layers log on other threads carries the id, too.
    first = json.loads(lines.text.splitlines()[0])
    assert (first["message"], first["request_id"]) == ("on the way", "mine-1")


def test_polling_is_quiet_while_all_is_well(client: TestClient, lines: Lines) -> None:
    for path in ("/health/live", "/health/ready", "/metrics"):
        client.get(path)
    assert {line["level"] for line in lines.of_requests()} == {"debug"}
    engine_of(client).store.close()
    client.get("/health/ready")
    assert lines.of_requests()[-1]["level"] == "warning"
    assert lines.of_requests()[-1]["error"] == "storage_unavailable"


@pytest.mark.parametrize("given", ["a", "0af7651916cd43dd8448eb211c80319c", "A.b_c:d=e+f/g-h", "x" * 128])
def test_a_request_keeps_its_id(client: TestClient, given: str) -> None:
    answer = client.get("/classifiers/absent", headers={"X-Request-ID": given})
    assert answer.headers["x-request-id"] == given
    assert answer.json()["error"]["request_id"] == given


@pytest.mark.parametrize(
    "given", [b"", b" ", b"x" * 129, b"a b", b'a"b', b"{}", b"a,b", b"\xff", b"a\tb", b"%0a", b"\xc3\xa9"]
)
def test_an_id_that_is_not_well_formed_is_replaced(client: TestClient, given: bytes) -> None:
    answer = client.get("/health/live", headers=[(b"X-Request-ID", given)])
    assert answer.status_code == 200
    assert GENERATED.fullmatch(answer.headers["x-request-id"])


def test_two_request_ids_are_replaced_by_one(client: TestClient) -> None:
    headers = [("X-Request-ID", "a"), ("X-Request-ID", "b")]
    answer = client.get("/health/live", headers=headers)
    assert GENERATED.fullmatch(answer.headers["x-request-id"])


def test_generated_request_ids_differ(client: TestClient) -> None:
    assert len({client.get("/health/live").headers["x-request-id"] for _ in range(20)}) == 20


def record(message: str, fields: dict[str, Any] | None = None) -> logging.LogRecord:
    made = logging.LogRecord("comln_serve.x", logging.WARNING, "", 0, message, (), None)
    made.created = 1e9
    made.__dict__["fields"] = fields or {}
    return made


def test_a_text_line_is_one_line() -> None:
    line = TextFormatter().format(
        record("two\nlines\x1b[0m", {"status": 201, "route": "/a", "odd": "a b", "ms": {"x": 1.5}})
    )
    assert line == (
        "2001-09-09T01:46:40.000Z WARNING comln_serve.x: two\\x0alines\\x1b[0m "
        'status=201 route=/a odd="a b" ms={"x":1.5}'
    )


def test_json_lines_hold_any_text() -> None:
    line = JsonFormatter().format(record("two\nlines \ud800 \u2028", {"path": Path("x")}))
    assert len(line.splitlines()) == 1
    assert line.isascii()
    assert json.loads(line)["message"] == "two\nlines \ud800 \u2028"


@pytest.mark.process
@pytest.mark.parametrize("terminal", [True, False])
def test_lines_are_text_in_a_terminal_and_json_elsewhere(terminal: bool) -> None:
    program = "import logging, comln_serve.logs as logs; logs.configure_logs('info', 'auto'); "
    program += "logging.getLogger('comln_serve').info('ready')"
    reading, writing = os.openpty() if terminal else os.pipe()
    try:
        subprocess.run([sys.executable, "-c", program], stderr=writing, check=True, timeout=60)
        line = os.read(reading, 10_000).decode()
    finally:
        os.close(writing)
        os.close(reading)
    if terminal:
        assert line.rstrip().endswith("INFO    comln_serve: ready")
    else:
        assert json.loads(line)["message"] == "ready"
