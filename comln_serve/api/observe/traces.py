"""Traces of requests, for OpenTelemetry. Imported only if tracing is configured.

Spans are made from a request's record when the request has ended: no other code handles spans.
"""

import logging
import time
from threading import Thread

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers

from comln_serve import __version__
from comln_serve.api.context import RequestRecord

_CLOSE_SECONDS = 2.0


class Traces:
    """Makes a span of every request, with its stages as children, and sends them in batches."""

    def __init__(self, endpoint: str | None) -> None:
        """Start the thread that sends to a collector's URL; None: that of OpenTelemetry's variables."""
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override it.
        ours = Resource({SERVICE_NAME: "comln-serve", SERVICE_VERSION: __version__})
        self._provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        url = None if endpoint is None else endpoint.rstrip("/") + "/v1/traces"
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url)))
        self._tracer = self._provider.get_tracer("comln_serve", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, record: RequestRecord, headers: Headers) -> Span:
        """Start a request's span, as part of the trace that its headers name, if any."""
        span = self._tracer.start_span("request", self._propagator.extract(headers), SpanKind.SERVER)
        record.trace_id = format(span.get_span_context().trace_id, "032x")
        return span

    def end(self, span: Span, record: RequestRecord) -> None:
        """End a request's span, with its stages as children and its record as attributes."""
        if not span.is_recording():
            return
        within = set_span_in_context(span)
        for name, began, ended in record.stages:
            self._tracer.start_span(name, within, start_time=began).end(ended)
        span.update_name(f"{record.method} {record.route}")
        attributes = {
            "http.request.method": record.method,
            "http.route": record.route,
            "http.response.status_code": record.status,
            "http.request.body.size": record.bytes_in,
            "http.response.body.size": record.bytes_out,
            "comln.request_id": record.id,
            "comln.images": None if record.operation is None else record.images,
            "comln.model": record.model,
            "comln.classifier": record.classifier,
            "error.type": record.error and record.error.value,
        }
        span.set_attributes({name: value for name, value in attributes.items() if value is not None})
        if record.status == 0 or record.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(time.time_ns())

    def close(self) -> None:
        """Send the remaining spans, but do not let a slow collector delay the process's exit."""
        # Nobody can act on failures to send any more.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        closing = Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
