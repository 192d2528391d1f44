"""/metrics counts and times real requests, and tells the state of the server."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from comln_serve import __version__
from comln_serve.errors import ErrorCode
from tests.support.engines import Serve
from tests.support.image_files import colour_support
from tests.support.messages import GREEN, RED, adapt_form, engine_of, predict_form, raw
from tests.support.paths import REPOSITORY

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read_metrics(client: TestClient) -> Samples:
    """Every sample by name and sorted labels, read by Prometheus' own parser."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((name, tuple(sorted(labels.items()))), 0.0)


class Difference:
    """What requests inside the block added to a counter."""

    def __init__(self, client: TestClient) -> None:
        self._client = client

    def __enter__(self) -> "Difference":
        self._before = read_metrics(self._client)
        return self

    def __exit__(self, *_: object) -> None:
        self._after = read_metrics(self._client)

    def of(self, name: str, **labels: str) -> float:
        return value(self._after, name, **labels) - value(self._before, name, **labels)

    def changed(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Every series of that name that grew, /metrics' own left out."""
        return {
            labels: grown
            for (found, labels), now in self._after.items()
            if found == name
            and ("route", "/metrics") not in labels
            and (grown := now - self._before.get((found, labels), 0.0))
        }


def requests_of(route: str, method: str, status: int) -> dict[str, str]:
    return {"route": route, "method": method, "status": str(status)}


def key(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def test_adapt_and_predict_are_counted_and_timed(client: TestClient) -> None:
    with Difference(client) as difference:
        assert client.post("/adapt", **adapt_form(colour_support(2), name="known")).is_success
        assert client.post("/predict", **predict_form(RED, GREEN, RED)).is_success
        assert client.post("/predict", **predict_form(RED)).is_success
    assert difference.changed("comln_requests_total") == {
        key(**requests_of("/adapt", "POST", 201)): 1,
        key(**requests_of("/predict", "POST", 200)): 2,
    }
    assert difference.changed("comln_images_total") == {key(operation="adapt"): 6, key(operation="predict"): 4}
    assert difference.changed("comln_adaptations_total") == {key(model="tiny"): 1}
    assert difference.changed("comln_predictions_total") == {key(model="tiny"): 4}
    assert difference.changed("comln_request_failures_total") == {}
    stages = difference.changed("comln_stage_duration_seconds_count")
    for stage in ("decode", "embed", "solve", "store"):
        assert stages[key(operation="adapt", stage=stage)] == 1
    for stage in ("decode", "embed"):
        assert stages[key(operation="predict", stage=stage)] == 2
    assert not any(("stage", "total") in labels for labels in stages)
    labels = {"route": "/adapt", "method": "POST"}
    assert difference.of("comln_request_duration_seconds_count", **labels) == 1
    total = difference.of("comln_request_duration_seconds_sum", **labels)
    parts = sum(
        difference.of("comln_stage_duration_seconds_sum", operation="adapt", stage=stage)
        for stage in ("decode", "embed", "solve", "store")
    )
    assert 0 < parts <= total < 30
    assert difference.of("comln_classifiers") == 1


def test_renaming_classes_is_counted_as_a_classifier_made(client: TestClient) -> None:
    client.post("/adapt", **adapt_form(colour_support(2), name="known")).raise_for_status()
    path = "/classifiers/known/labels"
    with Difference(client) as difference:
        assert client.post(path, json={"labels": {"red": "Red"}}).is_success
        assert client.post(path, json={"labels": {"Red": "blue"}}).is_success
    assert difference.changed("comln_requests_total") == {
        key(**requests_of("/classifiers/{ref}/labels", "POST", 201)): 2
    }
    assert difference.changed("comln_adaptations_total") == {key(model="tiny"): 2}
    assert difference.changed("comln_images_total") == {}
    stages = difference.changed("comln_stage_duration_seconds_count")
    assert stages[key(operation="adapt", stage="store")] == 2
    assert stages[key(operation="adapt", stage="solve")] == 1


@pytest.mark.usefixtures("batched")
def test_batches_and_waits_are_measured(client: TestClient) -> None:
    with Difference(client) as difference:
        assert client.post("/adapt", **adapt_form(colour_support(2), name="known")).is_success
        assert client.post("/predict", **predict_form(RED)).is_success
        assert client.post("/predict", **predict_form(b"no image")).is_error
    # One batch for each request; more if decoding takes longer than a batch waits.
    batches = difference.of("comln_batch_images_count", model="tiny")
    assert 2 <= batches < 7
    assert difference.of("comln_batch_images_sum", model="tiny") == 7
    assert difference.of("comln_batch_duration_seconds_count", model="tiny") == batches
    assert difference.of("comln_batch_images_count", model="tiny-learned") == 0
    for operation in ("adapt", "predict"):
        assert difference.of("comln_queue_duration_seconds_count", operation=operation) == 1
        seconds = difference.of("comln_request_duration_seconds_sum", route=f"/{operation}", method="POST")
        assert 0 < difference.of("comln_stage_duration_seconds_sum", operation=operation, stage="embed") < seconds
    # Batches may overlap, so that their sum may exceed that of the stages.
    assert difference.of("comln_batch_duration_seconds_sum", model="tiny") > 0
    waited = difference.of("comln_queue_duration_seconds_sum", operation="adapt")
    assert 0 < waited < difference.of("comln_request_duration_seconds_sum", route="/adapt", method="POST")
    assert value(read_metrics(client), "comln_queued_images", model="tiny") == 0


def test_the_page_is_counted_by_its_routes(client: TestClient) -> None:
    with Difference(client) as difference:
        assert client.get("/", headers={"Accept": "text/html"}).status_code == 200
        assert client.get("/page/base.css").status_code == 200
        assert client.get("/page/absent.css").status_code == 404
        assert client.get("/docs").status_code == 200
    assert difference.changed("comln_requests_total") == {
        key(**requests_of("/", "GET", 200)): 1,
        key(**requests_of("/page/{path:path}", "GET", 200)): 1,
        key(**requests_of("/page/{path:path}", "GET", 404)): 1,
        key(**requests_of("/docs", "GET", 200)): 1,
    }


def test_refusals_are_counted_by_status_and_reason(client: TestClient) -> None:
    with Difference(client) as difference:
        assert client.post("/adapt", **raw(b"{}")).status_code == 422
        assert client.post("/adapt", **adapt_form([(b"no image", "a"), (RED, "b")])).is_error
        assert client.get("/classifiers/absent").status_code == 404
        assert client.get("/nothing/here").status_code == 404
        assert client.put("/adapt").status_code == 405
        assert client.get("/predict").status_code == 405
        requests, most = client.app.state.requests, engine_of(client).settings.max_pending_requests  # type: ignore[attr-defined]
        requests.hold(most)
        assert client.post("/predict", **predict_form(RED)).status_code == 429
        requests.give_back(most)
    assert difference.changed("comln_requests_total") == {
        key(**requests_of("/adapt", "POST", 422)): 2,
        key(**requests_of("/classifiers/{ref}", "GET", 404)): 1,
        key(**requests_of("unmatched", "GET", 404)): 1,
        key(**requests_of("/adapt", "PUT", 405)): 1,
        key(**requests_of("/predict", "GET", 405)): 1,
        key(**requests_of("/predict", "POST", 429)): 1,
    }
    assert difference.changed("comln_request_failures_total") == {
        key(reason=reason): 2 if reason == "method_not_allowed" else 1
        for reason in (
            "invalid_request",
            "invalid_image",
            "classifier_not_found",
            "route_not_found",
            "method_not_allowed",
            "overloaded",
        )
    }
    # Two images were read before one of them was found to be none.
    assert difference.changed("comln_images_total") == {key(operation="adapt"): 2}
    assert difference.changed("comln_adaptations_total") == {}


def test_a_bug_is_counted(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_of(client), "adapt", None)
    with Difference(client) as difference:
        assert client.post("/adapt", **adapt_form()).status_code == 500
    assert difference.changed("comln_requests_total") == {key(**requests_of("/adapt", "POST", 500)): 1}
    assert difference.of("comln_request_failures_total", reason="internal") == 1


def test_clients_cannot_create_time_series(client: TestClient) -> None:
    """Whatever they send, the labels stay those of a fixed set."""
    client.get("/classifiers/warm")
    client.get("/warm")
    client.request("BREW", "/warm")
    before = set(read_metrics(client))
    for i in range(20):
        client.get(f"/classifiers/name{i}")
        client.get(f"/path{i}?query={i}")
        client.request(f"BREW{i}", "/pot")
        client.post("/predict", **predict_form(RED, classifier=f"c{i}"))
    new = {(name, dict(labels).get("route")) for name, labels in set(read_metrics(client)) - before}
    assert {route for _, route in new} <= {"/predict", "/metrics"}


def test_metrics_tell_the_state_of_the_server(client: TestClient) -> None:
    samples = read_metrics(client)
    assert value(samples, "comln_models_ready") == 1
    assert value(samples, "comln_classifiers") == 0
    assert value(samples, "comln_pending", unit="images") == 0
    assert value(samples, "comln_pending", unit="requests") == 0
    assert value(samples, "comln_requests_in_flight") == 1  # the one that asks
    for model in ("tiny", "tiny-learned", "tiny-prototype"):
        default = "true" if model == "tiny" else "false"
        labels = {"model": model, "provider": "cpu", "default": default}
        assert value(samples, "comln_model_info", **labels) == 1
    (build,) = [dict(labels) for name, labels in samples if name == "comln_build_info"]
    assert build["version"] == __version__
    assert set(build) == {"version", "python", "onnxruntime"}
    assert value(samples, "process_resident_memory_bytes") > 1e6
    # What has not happened yet is 0, not absent.
    for code in ErrorCode:
        assert samples["comln_request_failures_total", key(reason=code.value)] == 0
    assert samples["comln_adaptations_total", key(model="tiny-learned")] == 0


def test_metrics_tell_the_work_under_way(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """And counted down again however it ends."""
    engine = engine_of(client)
    begun, go_on = Event(), Event()

    def stuck(*_: Any, **__: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        raise RuntimeError("a bug")

    monkeypatch.setattr(engine, "adapt", stuck)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: client.post("/adapt", **adapt_form()))
        assert begun.wait(30)
        with engine.images.admit(7):
            samples = read_metrics(client)
        go_on.set()
        assert answer.result().status_code == 500
    assert value(samples, "comln_pending", unit="requests") == 1
    assert value(samples, "comln_pending", unit="images") == 7
    assert value(samples, "comln_requests_in_flight") == 2
    samples = read_metrics(client)
    assert value(samples, "comln_pending", unit="requests") == 0
    assert value(samples, "comln_requests_in_flight") == 1


def test_nothing_waits_for_a_model_that_was_removed(serve: Serve, models: Path) -> None:
    client = serve(models_dir=models)
    engine = engine_of(client)
    engine.models["tiny-learned"].batcher.queued = 3
    assert value(read_metrics(client), "comln_queued_images", model="tiny-learned") == 3
    shutil.rmtree(models / "tiny-learned")
    assert engine.reload().removed == ["tiny-learned"]
    assert value(read_metrics(client), "comln_queued_images", model="tiny-learned") == 0


def test_metrics_are_served_without_the_store(client: TestClient) -> None:
    engine_of(client).store.close()
    samples = read_metrics(client)
    assert ("comln_classifiers", ()) not in samples
    assert value(samples, "comln_models_ready") == 1


def test_health_probes_are_answered_while_scrapes_hang(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the driver of a GPU does not answer."""
    metrics = cast("Any", client.app).state.metrics
    let_go, waiting = Event(), Semaphore(0)

    def hangs() -> bytes:
        waiting.release()
        assert let_go.wait(30)
        return b""

    monkeypatch.setattr(metrics, "text", hangs)
    with ThreadPoolExecutor(8) as pool:
        scrapes = [pool.submit(client.get, "/metrics") for _ in range(8)]
        try:
            assert waiting.acquire(timeout=30)
            while waiting.acquire(timeout=0.5):
                pass
            assert client.get("/health/ready").status_code == 200
        finally:
            let_go.set()
        assert {scrape.result(30).status_code for scrape in scrapes} == {200}


def test_every_metric_is_documented(client: TestClient) -> None:
    document = (REPOSITORY / "docs" / "monitoring.md").read_text(encoding="utf-8")
    assert client.post("/adapt", **adapt_form(name="known")).is_success
    families = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(client.get("/metrics").text)
        if not family.name.startswith(("process_", "python_")) and family.name[-8:] != "_created"
    }
    assert set(re.findall(r"^\| `(comln_\w+)` \|", document, re.MULTILINE)) == families


def test_applications_do_not_share_metrics(serve: Serve, tmp_path: Path) -> None:
    first, second = serve(), serve(database_url=f"sqlite:///{tmp_path / 'other.db'}")
    assert first.post("/adapt", **adapt_form()).is_success
    assert value(read_metrics(first), "comln_adaptations_total", model="tiny") == 1
    assert value(read_metrics(second), "comln_adaptations_total", model="tiny") == 0
