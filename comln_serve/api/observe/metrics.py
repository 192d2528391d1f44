"""The metrics that Prometheus reads at `/metrics`.

Every label has a bounded set of values: route templates, known methods, error codes, stages and
served models; never a path, name or id that a client chose.
"""

import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial

import onnxruntime as ort
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from comln_serve import __version__
from comln_serve.api.context import RequestRecord
from comln_serve.api.observe.gpu import gpu_memory
from comln_serve.counts import Count
from comln_serve.engine.engine import Engine
from comln_serve.engine.models import Model
from comln_serve.errors import ErrorCode, ServiceError

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
# Seconds: a small image on a GPU takes a millisecond, hundreds on a CPU take many seconds.
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_BATCH_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """The metrics of one server, in a registry of its own.

    If the server has several processes, each writes to files that they share (Prometheus' multiprocess mode), and the
    one that is asked answers for all.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._registry = engine, CollectorRegistry()
        several = engine.shared.processes > 1
        if several:
            MultiProcessCollector(self._registry)
        registry = None if several else self._registry
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry, buckets=_SECONDS)
        gauge = partial(Gauge, multiprocess_mode="livesum", registry=registry)
        self._requests = counter(
            "comln_requests",
            "Requests answered. status is 0 where the request ended without an answer.",
            ["route", "method", "status"],
        )
        self._failures = counter(
            "comln_request_failures", "Answers with an error, by the code in their body.", ["reason"]
        )
        for code in ErrorCode:  # rate() misses the first event of a series that starts with it
            self._failures.labels(code.value)
        self._seconds = histogram(
            "comln_request_duration_seconds",
            "From the head of a request to the end of its answer.",
            ["route", "method"],
        )
        self._stages = histogram(
            "comln_stage_duration_seconds",
            "Time of one stage of an adapt or predict request that succeeded.",
            ["operation", "stage"],
        )
        self._queue = histogram(
            "comln_queue_duration_seconds",
            "Waiting time of an adapt or predict request that was embedded.",
            ["operation"],
        )
        self._batch_images = histogram(
            "comln_batch_images", "Images embedded together.", ["model"], buckets=_BATCH_IMAGES
        )
        self._batch_seconds = histogram("comln_batch_duration_seconds", "Time to embed one batch.", ["model"])
        self._images = counter(
            "comln_images",
            "Images in adapt and predict requests that could be read, refused later or not.",
            ["operation"],
        )
        self._rejected = counter(
            "comln_rejected_images",
            "Images left out of adapt and predict requests with partial, by the code of their error.",
            ["reason"],
        )
        for code in (ErrorCode.INVALID_IMAGE, ErrorCode.IMAGE_TOO_LARGE, ErrorCode.INVALID_REQUEST):
            self._rejected.labels(code.value)
        self._adaptations = counter("comln_adaptations", "Classifiers made.", ["model"])
        self._predictions = counter("comln_predictions", "Images classified.", ["model"])
        self.in_flight = gauge("comln_requests_in_flight", "Requests being received or answered.")
        self._queued = gauge("comln_queued_images", "Decoded images that are in no batch yet.", ["model"])
        self._ready = gauge(
            "comln_models_ready", "1 once every model is warmed, in every process.", multiprocess_mode="livemin"
        )
        for operation in ("adapt", "predict"):
            self._images.labels(operation)
            self._queue.labels(operation)
        self._seen: set[str] = set()  # names of all models there have been
        self._observe(engine.models)
        engine.on_models = self._observe
        self._registry.register(_State(engine))
        if several:
            self._registry.register(_Processes(engine))
        else:
            ProcessCollector(registry=self._registry)
            GCCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def count(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        method = record.method if record.method in _METHODS else "other"
        self._requests.labels(record.route, method, str(record.status)).inc()
        self._seconds.labels(record.route, method).observe(record.seconds)
        if record.error is not None:
            self._failures.labels(record.error.value).inc()
        if record.operation is None:
            return
        self._images.labels(record.operation).inc(record.images)
        for code in record.rejected:
            self._rejected.labels(code.value).inc()
        waits = [ended - began for name, began, ended in record.stages if name == "queue"]
        if waits:
            self._queue.labels(record.operation).observe(sum(waits) / 1e9)
        for stage, milliseconds in record.stages_ms.items():
            if stage != "total":
                self._stages.labels(record.operation, stage).observe(milliseconds / 1e3)
        if record.model is not None:
            if record.operation == "adapt":
                self._adaptations.labels(record.model).inc()
            else:
                self._predictions.labels(record.model).inc(record.images - len(record.rejected))

    def _observe(self, models: Mapping[str, Model]) -> None:
        """Count the adaptations, predictions and batches of these models from now on."""
        self._seen = {*self._seen, *models}
        for name, model in models.items():
            self._adaptations.labels(name)
            self._predictions.labels(name)
            model.batcher.on_batch = self._on_batch(name)

    def _on_batch(self, model: str) -> Callable[[int, float], None]:
        images, seconds = self._batch_images.labels(model), self._batch_seconds.labels(model)

        def observe(count: int, duration: float) -> None:
            images.observe(count)
            seconds.observe(duration)

        return observe

    def refresh(self) -> None:
        """Set the gauges that nothing else sets. Called regularly if the server has several processes."""
        models = self._engine.models
        for name in self._seen:
            self._queued.labels(name).set(models[name].batcher.queued if name in models else 0)
        self._ready.set(int(self._engine.ready))

    def text(self) -> bytes:
        """All metrics in Prometheus' text format, `CONTENT_TYPE`. Blocks: it queries the store."""
        self.refresh()
        return generate_latest(self._registry)


class _State(Collector):
    """Gauges that are read from the engine at each scrape."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        engine, shared = self._engine, self._engine.shared
        pending = GaugeMetricFamily(
            "comln_pending",
            "Requests, their images (each view of an image is one) and the bytes of bodies being worked on or "
            "waiting, against the limits --max-pending-*.",
            labels=["unit"],
        )
        for unit in (Count.REQUESTS, Count.IMAGES, Count.BYTES):
            pending.add_metric([unit.name.lower()], shared.total(unit))
        yield pending
        yield GaugeMetricFamily("comln_workers", "Processes that serve.", value=shared.serving())
        restarts = shared.total(Count.RESTARTS)
        yield CounterMetricFamily("comln_worker_restarts", "Processes replaced after they died or hung.", restarts)
        # If the store cannot be reached, the gauge is left out.
        with suppress(ServiceError):
            stored = engine.store.count()
            yield GaugeMetricFamily("comln_classifiers", "Classifiers stored.", value=stored)
        models = GaugeMetricFamily(
            "comln_model_info", "The models served, and what each runs on.", labels=["model", "provider", "default"]
        )
        for name, model in engine.models.items():
            default = "true" if name == engine.models.default else "false"
            models.add_metric([name, model.provider, default], 1)
        yield models
        here = (model for model in engine.models.values() if model.on_this_machine)
        if any(model.provider == "cuda" for model in here):
            yield from gpu_memory()
        build = GaugeMetricFamily("comln_build_info", "What is running.", labels=["version", "python", "onnxruntime"])
        build.add_metric([__version__, platform.python_version(), str(ort.__version__)], 1)
        yield build


class _Processes(Collector):
    """Memory, time and files of the processes, in the names of `ProcessCollector`: their sums."""

    def __init__(self, engine: Engine) -> None:
        self._shared = engine.shared

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Metric] = {}
        for pid in self._shared.pids():
            for metric in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():
                sum_so_far = found.setdefault(metric.name, metric)
                if sum_so_far is metric:
                    continue
                (one,), (other,) = sum_so_far.samples, metric.samples
                earliest = metric.name == "process_start_time_seconds"
                value = min(one.value, other.value) if earliest else one.value + other.value
                sum_so_far.samples = [one._replace(value=value)]
        yield from found.values()
