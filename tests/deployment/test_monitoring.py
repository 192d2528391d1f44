"""Alerts and dashboard, read by Prometheus and true of what a server under load tells it."""

import json
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from comln_serve.api.observe import metrics
from comln_serve.api.observe.gpu import gpu_memory
from comln_serve.configuration.settings import Settings
from tests.support.documents import document
from tests.support.image_files import colour_support
from tests.support.live import free_port, live_server
from tests.support.messages import RED, adapt_form, predict_form
from tests.support.paths import REPOSITORY
from tests.support.tools import tool
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

FOLDER = REPOSITORY / "deploy" / "monitoring"
ALERTS = FOLDER / "alerts.yaml"
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
JOB = "comln-serve"
ROUNDS, PAUSE_S, SCRAPES, WINDOW = 8, 0.5, "1s", "30s"


def promtool(*arguments: str | Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([tool("promtool"), *arguments], input=text, capture_output=True, text=True, check=False)


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return group["rules"]


def unit_tests() -> list[dict[str, Any]]:
    return yaml.safe_load((FOLDER / "alerts.test.yaml").read_text())["tests"]


def queries() -> list[tuple[str, str, str]]:
    """Title, query and legend of every line of the dashboard, Grafana's variables filled in."""
    filled = {"$__rate_interval": WINDOW, "$job": JOB, "$instance": ".+"}
    found: list[tuple[str, str, str]] = []
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"]
            for variable, value in filled.items():
                query = query.replace(variable, value)
            assert "$" not in query
            found.append((panel["title"], query, target["legendFormat"]))
    return found


class _Gpus(Collector):
    def collect(self) -> Iterator[Metric]:
        yield from gpu_memory()


class _Driver:
    """NVML's bindings on a machine with one GPU."""

    NVMLError = OSError

    def __getattr__(self, name: str) -> object:
        memory = SimpleNamespace(used=2**30, total=80 * 2**30)
        answers = {"nvmlDeviceGetCount": 1, "nvmlDeviceGetMemoryInfo": memory, "nvmlDeviceGetUUID": "GPU-0"}
        return lambda *_: answers.get(name)


def gpu_metrics() -> bytes:
    """What a server tells of one GPU; no test machine has one."""
    registry = CollectorRegistry()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pynvml", _Driver())
        registry.register(_Gpus())
        return generate_latest(registry)


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", metrics.CONTENT_TYPE)
        self.end_headers()
        self.wfile.write(gpu_metrics())

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


@contextmanager
def gpu_target() -> Generator[str, None, None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def prometheus(folder: Path, *targets: str) -> Generator[str, None, None]:
    """A Prometheus that scrapes as `prometheus.yaml` says, but these targets, and often. Its URL."""
    configuration = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    (job,) = configuration["scrape_configs"]
    job.update(scrape_interval=SCRAPES, scrape_timeout=SCRAPES, static_configs=[{"targets": [*targets]}])
    configuration["rule_files"] = [str(FOLDER / name) for name in configuration["rule_files"]]
    configuration["global"] = {"evaluation_interval": "1s"}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    url = f"http://127.0.0.1:{free_port()}"
    command = [tool("prometheus"), f"--config.file={folder / 'prometheus.yaml'}"]
    command += [f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={urlsplit(url).netloc}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        for _ in range(200):
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            try:
                if httpx2.get(f"{url}/-/ready").status_code == 200:
                    break
            except httpx2.TransportError:
                pass
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(30)


@dataclass(frozen=True)
class Watched:
    """A server that has worked, and the Prometheus that has watched it.

    Attributes:
        text: of `/metrics`, the server's and that of a GPU.
        labels: of each metric in it, the values of each label.
        results: by title and query of the dashboard, the labels and the value of each line.
        alerts: as Prometheus tells of them.
    """

    text: str
    labels: dict[str, dict[str, set[str]]]
    results: dict[tuple[str, str], list[tuple[dict[str, str], float]]]
    alerts: list[dict[str, Any]]


def work(url: str) -> None:
    """Requests of many kinds, errors included."""
    assert httpx2.post(f"{url}/adapt", **adapt_form(colour_support(2), name="known")).status_code == 201
    assert httpx2.post(f"{url}/predict", **predict_form(RED)).status_code == 200
    assert httpx2.post(f"{url}/predict", **predict_form(b"no image")).status_code == 422
    assert httpx2.get(f"{url}/v2/health/ready").status_code == 200


@pytest.fixture(scope="module")
def watched(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    tool("prometheus")
    folder = tmp_path_factory.mktemp("monitoring")
    with live_server(models_dir, folder) as server, gpu_target() as gpu:
        work(server.url)
        with prometheus(folder, urlsplit(server.url).netloc, gpu) as url:
            ask = partial(httpx2.get, f"{url}/api/v1/query")

            def latest(query: str) -> float:
                result = ask(params={"query": query}).json()["data"]["result"]
                return float(result[0]["value"][1]) if result else 0

            # Prometheus begins to scrape seconds after it is ready; rates need samples between the rounds.
            wait_until(lambda: latest("sum(up)") == 2)
            for _ in range(ROUNDS):
                work(server.url)
                time.sleep(PAUSE_S)
            # A busy machine may miss a scrape.
            wait_until(lambda: latest("max(comln_classifiers)") == ROUNDS + 1 and latest("sum(up)") == 2)
            now = time.time()
            results: dict[tuple[str, str], list[tuple[dict[str, str], float]]] = {}
            for title, query, _ in queries():
                answer = ask(params={"query": query, "time": now}).json()
                assert answer["status"] == "success", (title, answer)
                result = answer["data"]["result"]
                results[title, query] = [(line["metric"], float(line["value"][1])) for line in result]
            (group,) = httpx2.get(f"{url}/api/v1/rules").json()["data"]["groups"]
        text = httpx2.get(f"{server.url}/metrics").text + gpu_metrics().decode()
    labels: dict[str, dict[str, set[str]]] = {"up": {}}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values = labels.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                values.setdefault(label, set()).add(value)
    return Watched(text, labels, results, group["rules"])


def test_prometheus_finds_no_fault_with_the_metrics(watched: Watched) -> None:
    done = promtool("check", "metrics", text=watched.text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_prometheus_accepts_the_configuration() -> None:
    done = promtool("check", "config", FOLDER / "prometheus.yaml")
    assert done.returncode == 0, done.stderr
    assert f"{len(rules())} rules found" in done.stdout


def test_alerts_fire_when_they_should() -> None:
    done = promtool("test", "rules", FOLDER / "alerts.test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_and_explained() -> None:
    names = {rule["alert"] for rule in rules()}
    asked = [check for test in unit_tests() for check in test["alert_rule_test"]]
    assert {check["alertname"] for check in asked if check.get("exp_alerts")} == names
    assert {check["alertname"] for check in asked if not check.get("exp_alerts")} == names
    lines = document("monitoring.md").splitlines()
    assert {line.split("`")[1] for line in lines if line.startswith("| `Comln")} == names


def test_alerts_are_about_metrics_that_exist(watched: Watched) -> None:
    """The alerts fire on the series of their tests, and those are as in /metrics."""
    for test in unit_tests():
        for item in test["input_series"]:
            (family,) = text_string_to_metric_families(f"{item['series']} 0\n")
            (sample,) = family.samples
            known = watched.labels[sample.name]
            for label, value in sample.labels.items():
                if label in ("job", "instance"):  # Prometheus' own
                    continue
                if sample.name == "comln_requests_total" and label == "status":
                    assert value in known[label] | {"429"}
                else:
                    assert value in known[label], item["series"]


def test_nothing_fires_while_all_is_well(watched: Watched) -> None:
    assert {alert["name"] for alert in watched.alerts} == {rule["alert"] for rule in rules()}
    for alert in watched.alerts:
        assert (alert["health"], alert["state"]) == ("ok", "inactive"), alert


def test_every_panel_shows_something(watched: Watched) -> None:
    for title, query, legend in queries():
        lines = watched.results[title, query]
        # A quantile of a histogram without new samples is NaN: of models that nobody asks, for one.
        assert any(value == value for _, value in lines), (title, query)
        for labels, _ in lines:
            named = [part.split("}}")[0] for part in legend.split("{{")[1:]]
            assert set(named) <= set(labels), (title, legend, labels)


def test_panels_add_up(watched: Watched) -> None:
    values = {title: lines for (title, _), lines in watched.results.items()}
    assert [value for _, value in values["Servers up"]] == [2], "the server and the GPU's"
    assert [value for _, value in values["Models warm"]] == [1]
    assert [value for _, value in values["Classifiers"]] == [ROUNDS + 1]
    assert [value for _, value in values["Answered with a 5xx"]] == [0]
    assert [labels["reason"] for labels, _ in values["Errors by code"]] == ["invalid_image"]
    images = {labels["operation"]: value for labels, value in values["Images received"]}
    assert images["adapt"] == pytest.approx(6 / 2 * images["predict"], rel=0.3), "scrapes come within rounds"


def assert_kept(given: Any, read: Any, place: str) -> None:
    """Whether reading by Grafana's own schema, which adds defaults, has kept what was given."""
    assert type(given) is type(read), place
    if isinstance(given, dict):
        for key, value in given.items():
            assert key in read, f"{place}.{key} is not in the schema"
            assert_kept(value, read[key], f"{place}.{key}")
    elif isinstance(given, list):
        assert len(given) == len(read), place
        for number, (value, other) in enumerate(zip(given, read, strict=True)):
            assert_kept(value, other, f"{place}[{number}]")
    else:
        assert given == read, place


def test_the_dashboard_is_one_of_grafana() -> None:
    read = Dashboard.from_json(DASHBOARD)
    assert_kept(DASHBOARD, json.loads(json.dumps(read, cls=JSONEncoder)), "dashboard")
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    cells = [
        (column, line)
        for place in places
        for column in range(place["x"], place["x"] + place["w"])
        for line in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(column for column, _ in cells) < 24


def test_limits_are_those_of_the_settings() -> None:
    (near,) = [rule["expr"] for rule in rules() if rule["alert"] == "ComlnPendingNearLimit"]
    (pending,) = [panel for panel in DASHBOARD["panels"] if panel["title"].startswith("Pending")]
    for unit in ("images", "requests", "bytes"):
        limit = Settings.model_fields[f"max_pending_{unit}"].default
        assert f'comln_pending{{unit="{unit}"}} / {limit} > ' in near
        assert any(
            f'unit="{unit}"' in target["expr"] and target["expr"].endswith(f"/ {limit}")
            for target in pending["targets"]
        )
