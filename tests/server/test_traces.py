"""Traces of real requests, as an OTLP collector receives them from the server."""

import gzip
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from comln_serve.api.app import open_traces
from comln_serve.cli import main
from comln_serve.configuration.settings import Settings
from comln_serve.errors import StartupError
from tests.support import http
from tests.support.image_files import colour_support, image_bytes
from tests.support.live import free_port, live_server
from tests.support.messages import adapt_form, predict_form

pytestmark = pytest.mark.slow

# The SDK sends what it has this often, in ms.
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """An OTLP/HTTP receiver on a free port."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers["Content-Encoding"] == "gzip":
                    body = gzip.decompress(body)
                collector.paths.add(self.path)
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def spans(self) -> list[Span]:
        return [
            span
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def wait_for(self, name: str) -> Span:
        """The span of that name; its children have come before or with it."""
        deadline = time.monotonic() + 30
        while True:
            found = [span for span in self.spans() if span.name == name]
            if found:
                (span,) = found
                return span
            assert time.monotonic() < deadline, [span.name for span in self.spans()]
            time.sleep(0.05)


@contextmanager
def collector() -> Generator[Collector, None, None]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()


def attributes_of(span: Any) -> dict[str, Any]:
    return {item.key: item.value.string_value or item.value.int_value for item in span.attributes}


@pytest.mark.parametrize("by", ["setting", "variable"])
def test_a_collector_gets_a_span_a_request_with_its_stages(by: str, models_dir: Path, tmp_path: Path) -> None:
    with collector() as received:
        environment, flags = {**os.environ, **QUICK}, ["--default-model", "tiny"]
        if by == "setting":
            flags += ["--otlp-endpoint", received.url]
        else:
            environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = received.url
        with live_server(models_dir, tmp_path, *flags, environment=environment) as server:
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-ID": "find-me"}
            form = adapt_form(colour_support(2), name="known")
            answer = http.post(f"{server.url}/adapt", headers=headers, **form)
            assert answer.status_code == 201
            adapt = received.wait_for("POST /adapt")
            assert http.get(f"{server.url}/classifiers/secret?secret=1").status_code == 422
            refused = received.wait_for("GET /classifiers/{ref}")
            unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
            form = predict_form(image_bytes())
            assert http.post(f"{server.url}/predict", headers=unsampled, **form).is_success
        assert server.process.returncode == 0
    lines = [line for line in server.lines("comln_serve.requests") if line["route"] != "/health/ready"]
    assert received.paths == {"/v1/traces"}
    assert (adapt.trace_id.hex(), adapt.parent_span_id.hex()) == (TRACE, PARENT)
    assert adapt.kind == Span.SPAN_KIND_SERVER
    expected = {
        "http.request.method": "POST",
        "http.route": "/adapt",
        "http.response.status_code": 201,
        "comln.request_id": "find-me",
        "comln.model": "tiny",
        "comln.images": 6,
    }
    assert attributes_of(adapt).items() >= expected.items()
    # The stages lie within it, and last as long as the client is told.
    children = [span for span in received.spans() if span.parent_span_id == adapt.span_id]
    assert {span.name for span in children} == {"decode", "queue", "embed", "solve", "report", "store"}
    for span in children:
        assert span.trace_id == adapt.trace_id
        slack = 5_000_000  # ns; two clocks
        assert adapt.start_time_unix_nano - slack <= span.start_time_unix_nano
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= adapt.end_time_unix_nano + slack
        if span.name != "queue":
            ms = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
            assert ms == pytest.approx(answer.json()["timings_ms"][span.name], abs=0.01)

    assert attributes_of(refused)["error.type"] == "invalid_request"
    assert refused.trace_id.hex() not in ("", TRACE)
    # Neither polls that found all well nor what the caller does not sample.
    sent = {(s.name, attributes_of(s).get("http.response.status_code")) for s in received.spans()}
    assert sent.isdisjoint({("POST /predict", 200), ("GET /health/ready", 200)})
    assert [line.get("trace_id") for line in lines] == [TRACE, refused.trace_id.hex(), TRACE]
    assert not any(b"secret" in item.SerializeToString() for item in received.requests)
    (service,) = {
        attributes_of(resource.resource)["service.name"]
        for item in received.requests
        for resource in item.resource_spans
    }
    assert service == "comln-serve"


def test_requests_succeed_while_the_collector_is_down(models_dir: Path, tmp_path: Path) -> None:
    flags = ("--default-model", "tiny", "--otlp-endpoint", f"http://127.0.0.1:{free_port()}")
    environment = {**os.environ, **QUICK}
    with live_server(models_dir, tmp_path, *flags, environment=environment) as server:
        assert http.post(f"{server.url}/adapt", **adapt_form(name="known")).is_success
        for _ in range(5):
            form = predict_form(image_bytes())
            assert http.post(f"{server.url}/predict", **form).status_code == 200
        server.process.terminate()
        assert server.process.wait(timeout=30) == 0
    statuses = {line["status"] for line in server.lines("comln_serve.requests") if line["method"] == "POST"}
    assert statuses == {200, 201}


def test_the_sdk_is_imported_only_where_traces_are_configured() -> None:
    script = (
        "import sys, comln_serve.cli\n"
        "from comln_serve.api.app import open_traces\n"
        "from comln_serve.configuration.settings import Settings\n"
        "for endpoint in (None, 'http://127.0.0.1:9'):\n"
        "    open_traces(Settings(otlp_endpoint=endpoint))\n"
        "    print('opentelemetry.sdk' in sys.modules)"  # FastAPI itself imports the small API
    )
    environment = {name: value for name, value in os.environ.items() if "OTEL" not in name}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_traces_that_are_configured_but_not_installed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comln_serve.api.observe.traces", None)
    assert open_traces(Settings()) is None
    with pytest.raises(StartupError, match=r"pip install \"comln-serve\[otel\]\""):
        open_traces(Settings(otlp_endpoint="http://127.0.0.1:9"))


@pytest.mark.parametrize("endpoint", ["collector:4317", "grpc://x:4317", "http://", "http://x y"])
def test_an_endpoint_that_is_no_http_address_is_refused(endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--otlp-endpoint", endpoint, "--print-config"]) == 2
    assert "flag --otlp-endpoint: must be http://host:port" in capsys.readouterr().err
