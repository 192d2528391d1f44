"""The Ray Serve application, on a Ray of its own: two replicas of each kind, one database."""

import asyncio
import os
import pickle
import secrets
import shutil
import signal
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import httpx2
import numpy as np
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from comln_serve.configuration.settings import Settings
from comln_serve.configuration.sources import OF_RAY
from comln_serve.errors import ErrorCode, ServiceError, StartupError
from tests.support import http
from tests.support.bundles import edit_manifest
from tests.support.engines import MakeEngine
from tests.support.image_files import colour_support, image_bytes
from tests.support.live import free_port
from tests.support.messages import adapt_form, check_error, predict_form
from tests.support.paths import REPOSITORY
from tests.support.ray_replicas import Fragile, Slow
from tests.support.waiting import wait_until

pytest.importorskip("ray", reason="the extra `ray` is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    import ray
    from ray import serve
    from ray.serve.handle import DeploymentHandle
    from ray.serve.schema import ServeDeploySchema

    from comln_serve.ray_app import build
    from comln_serve.ray_app.calls import Call
    from comln_serve.ray_app.options import Options

# Ray's own: sockets and processes it leaves to the garbage collector, calls it has deprecated.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

cluster = pytest.mark.alone  # replicas are killed or stopped, which Ray Serve notices after many seconds

DATABASES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.alone))
SUPPORT = colour_support(2)
QUERIES = [
    image_bytes(colour, seed=seed) for seed in range(10, 13) for colour in ((210, 40, 30), (30, 210, 40), (40, 30, 210))
][:7]


@dataclass(frozen=True)
class Application:
    """A deployed application, with one classifier, `known`."""

    name: str
    url: str
    options: Options

    def processes(self, deployment: str) -> list[int]:
        """The processes of a deployment's replicas."""
        title = f"ray::ServeReplica:{self.name}:{deployment}".encode()
        found: list[int] = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "cmdline").read_bytes().startswith(title):
                    found.append(int(folder.name))
            except OSError:  # it has ended meanwhile
                continue
        return found

    def predict(self, *images: bytes) -> httpx2.Response:
        return http.post(f"{self.url}/predict", timeout=120, **predict_form(*images))

    def ready(self) -> httpx2.Response:
        return http.get(f"{self.url}/health/ready", timeout=30)

    def is_whole(self) -> bool:
        """Whether all replicas are running.

        Ray Serve's controller learns of a death only at its next health check, so the processes
        are counted, too.
        """
        deployments = serve.status().applications[self.name].deployments
        return all(
            dict(status.replica_states) == {"RUNNING": 2} and len(self.processes(name)) == 2
            for name, status in deployments.items()
        )


@pytest.fixture(scope="module")
def ray_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A small Ray, with Serve listening on the port. Its token stays out of the home folder."""
    port = free_port()
    token = tmp_path_factory.mktemp("ray") / "token"
    token.write_text(secrets.token_hex(32))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        environment.setenv("RAY_memory_monitor_refresh_ms", "0")  # others use this machine, too
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            ray.init(num_cpus=2, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False)
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            yield port
        finally:
            serve.shutdown()
            ray.shutdown()


@pytest.fixture(scope="module", params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of an empty database of each kind."""
    if request.param == "postgresql":
        url: str = request.getfixturevalue("postgresql")
        return url
    return f"sqlite:///{tmp_path_factory.mktemp('shared') / 'classifiers.db'}"


@pytest.fixture(scope="module")
def models(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny models; a support image has two views on the default one."""
    folder = tmp_path_factory.mktemp("models") / "models"
    shutil.copytree(models_dir, folder)

    def add_view(content: dict[str, Any]) -> None:
        content["preprocessing"]["support_views"] = [0.6]
        content["format_version"] = 6

    edit_manifest(folder / "tiny", add_view)
    return folder


@pytest.fixture(scope="module")
def deployed(ray_port: int, database_url: str, models: Path) -> Iterator[Application]:
    options = Options(
        models_dir=models,
        database_url=database_url,
        default_model="tiny",
        embedding_replicas=2,
        api_replicas=2,
        cpus_per_embedding_replica=0.25,
        cpus_per_api_replica=0.25,
        max_images=8,
        max_pending_images=32,
        max_batch_size=4,
        max_queue_seconds=60,
    )
    name = f"comln-{uuid.uuid4().hex[:8]}"
    serve.run(build(options), name=name, route_prefix="/")
    application = Application(name, f"http://127.0.0.1:{ray_port}", options)
    known = adapt_form(SUPPORT, name="known")
    http.post(f"{application.url}/adapt", timeout=120, **known).raise_for_status()
    yield application
    serve.delete(name)


@pytest.fixture
def application(deployed: Application) -> Application:
    """All its replicas running, whatever the test before did to them."""
    wait_until(deployed.is_whole)
    return deployed


@pytest.fixture
def local(models: Path, make_engine: MakeEngine) -> np.ndarray[Any, Any]:
    """Probabilities (7, 3) of QUERIES by an engine in this process."""
    engine = make_engine(models_dir=models)
    known = engine.adapt(SUPPORT).classifier
    return asyncio.run(engine.predict(QUERIES, known.id)).probabilities


def probabilities(answer: httpx2.Response) -> list[list[float]]:
    """By class in the order of SUPPORT, from the answer to a request with top_k=3."""
    labels = list(dict.fromkeys(label for _, label in SUPPORT))
    rows = [
        {entry["label"]: entry["probability"] for entry in prediction["top"]}
        for prediction in answer.raise_for_status().json()["predictions"]
    ]
    return [[row[label] for label in labels] for row in rows]


def test_many_at_a_time_answer_as_one_engine_would(application: Application, local: np.ndarray[Any, Any]) -> None:
    """Requests of 1 to 7 images, in one and in several batches, on all replicas."""

    def ask(count: int) -> list[list[float]]:
        form = predict_form(*QUERIES[:count], top_k=3)
        return probabilities(http.post(f"{application.url}/predict", timeout=120, **form))

    counts = [1 + i % 7 for i in range(42)]
    with ThreadPoolExecutor(4) as pool:
        for count, found in zip(counts, pool.map(ask, counts), strict=True):
            np.testing.assert_allclose(found, local[:count], rtol=1e-5, atol=1e-7)


def test_every_api_replica_answers(application: Application) -> None:
    """Each counts what it was asked for: a single one would count without a gap."""
    scrapes: list[float] = []

    def ask() -> bool:
        text = http.get(f"{application.url}/metrics", timeout=30).raise_for_status().text
        asked = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "comln_requests_total" and sample.labels["route"] == "/metrics"
        ]
        scrapes.append(sum(asked))
        return any(after != before + 1 for before, after in pairwise(scrapes))

    wait_until(ask)
    body = application.ready().raise_for_status().json()
    assert body["provider"] == dict.fromkeys(("tiny", "tiny-learned", "tiny-prototype"), "cpu")
    assert body["classifiers"] >= 1


def test_errors_of_the_application_have_the_one_shape(application: Application) -> None:
    check_error(application.predict(*[QUERIES[0]] * 9), ErrorCode.TOO_MANY_IMAGES)
    check_error(application.predict(b"not an image"), ErrorCode.INVALID_IMAGE)
    partial = predict_form(b"not an image", QUERIES[0], partial=True)
    found = http.post(f"{application.url}/predict", timeout=120, **partial).raise_for_status().json()
    assert [one and one["label"] for one in found["predictions"]] == [
        None,
        application.predict(QUERIES[0]).json()["predictions"][0]["label"],
    ]
    assert [one["index"] for one in found["rejected"]] == [0]
    form = predict_form(QUERIES[0]) | {"data": {"classifier": "nobody"}}
    check_error(http.post(f"{application.url}/predict", **form), ErrorCode.CLASSIFIER_NOT_FOUND)
    check_error(http.get(f"{application.url}/nowhere"), ErrorCode.ROUTE_NOT_FOUND)
    answer = http.get(f"{application.url}/models", headers={"X-Request-ID": "mine"})
    assert answer.headers.get_list("x-request-id") == ["mine"]


def test_any_host_name_is_answered_and_foreign_pages_are_refused(application: Application) -> None:
    headers = {"Host": "comln.example.org"}
    assert http.get(f"{application.url}/models", headers=headers).status_code == 200
    foreign, own = {"Origin": "https://evil.example"}, {"Origin": "http://comln.example.org"}
    for page, status in ((foreign, 403), (own, 200)):
        form = predict_form(QUERIES[0])
        answer = http.post(f"{application.url}/predict", headers={**headers, **page}, timeout=120, **form)
        assert answer.status_code == status


@cluster
def test_overload_is_answered_429(application: Application) -> None:
    """While nothing is embedded two replicas take 32 images each; the rest is refused at once."""
    embedding = application.processes("Embedding")
    assert len(embedding) == 2
    with ThreadPoolExecutor(40) as pool:
        for process in embedding:
            os.kill(process, signal.SIGSTOP)
        try:
            tasks = [pool.submit(application.predict, *QUERIES[:4]) for _ in range(40)]
            wait_until(lambda: sum(task.done() for task in tasks) >= 24)
        finally:
            for process in embedding:
                os.kill(process, signal.SIGCONT)
        answers = [task.result() for task in tasks]
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) == {200, 429}
    assert statuses[429] >= 24
    for answer in answers:
        if answer.status_code == 429:
            check_error(answer, ErrorCode.OVERLOADED)
    assert application.predict(QUERIES[0]).status_code == 200


@cluster
def test_requests_go_on_when_an_embedding_replica_dies(application: Application, local: np.ndarray[Any, Any]) -> None:
    """It is killed while requests are under way, of which none fails."""
    victim, _ = application.processes("Embedding")
    killed = Event()

    def ask(number: int) -> list[list[float]]:
        if number == 20:
            os.kill(victim, signal.SIGKILL)
            killed.set()
        form = predict_form(QUERIES[number % 7], top_k=3)
        return probabilities(http.post(f"{application.url}/predict", timeout=120, **form))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ask, range(60)))
    assert killed.is_set()
    for number, rows in enumerate(found):
        np.testing.assert_allclose(rows, local[number % 7][None], rtol=1e-5, atol=1e-7)


@cluster
def test_the_application_is_not_ready_while_nothing_embeds(application: Application) -> None:
    """Every embedding replica is killed: 503 until Ray Serve has started others.

    They are killed again and again: Ray Serve may find that one has died, and start another, before
    it finds the second.
    """
    answers: list[httpx2.Response] = []

    def unready() -> bool:
        for process in application.processes("Embedding"):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        answers.append(application.ready())
        return answers[-1].status_code != 200

    wait_until(unready)
    check_error(answers[-1], ErrorCode.NOT_READY)
    wait_until(lambda: application.ready().status_code == 200)
    assert application.predict(QUERIES[0]).status_code == 200


IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)


@pytest.fixture
def fragile(ray_port: int, tmp_path: Path) -> Iterator[Callable[[int], DeploymentHandle[Any]]]:
    """Embedding replicas of which a number of calls is the death."""

    def make(deaths: int) -> DeploymentHandle[Any]:
        deployment = serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 0})(Fragile)
        return serve.run(deployment.bind(str(tmp_path / "calls"), deaths), name="fragile", route_prefix=None)

    yield make
    serve.delete("fragile")


def failure(call: Call[Any]) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        call.result(120)
    return caught.value


@cluster
def test_a_call_to_a_dying_replica_is_made_to_another(
    fragile: Callable[[int], DeploymentHandle[Any]], tmp_path: Path
) -> None:
    replicas = fragile(1)
    embeddings = Call[Any](replicas, "embed", "any", IMAGES).result(120)
    np.testing.assert_array_equal(embeddings, [[0.0], [12.0]])
    assert (tmp_path / "calls").stat().st_size == 2
    refused = failure(Call(replicas, "embed", "refused", IMAGES))
    assert (refused.code, refused.detail) == (ErrorCode.QUEUE_TIMEOUT, {"allowed_seconds": 1.5})


@cluster
def test_a_request_that_kills_every_replica_is_given_up(
    fragile: Callable[[int], DeploymentHandle[Any]], tmp_path: Path
) -> None:
    error = failure(Call(fragile(100), "embed", "any", IMAGES))
    assert error.code is ErrorCode.NOT_READY
    assert (tmp_path / "calls").stat().st_size >= 3  # Ray Serve repeats some itself


@cluster
def test_calls_in_excess_are_refused_and_cancelled_ones_end(ray_port: int, tmp_path: Path) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    deployment = serve.deployment(max_ongoing_requests=1, max_queued_requests=1, ray_actor_options={"num_cpus": 0})(
        Slow
    )
    handle = serve.run(deployment.bind(str(begun), str(gate)), name="slow", route_prefix=None)
    try:
        running = Call[str](handle, "embed")
        wait_until(begun.exists)
        queued = Call[str](handle, "embed")
        with pytest.raises(TimeoutError):
            queued.result(0.5)
        assert failure(Call[str](handle, "embed")).code is ErrorCode.OVERLOADED
        queued.cancel()
        assert failure(queued).code is ErrorCode.CLIENT_GONE
        gate.touch()
        assert running.result(60) == "done"
    finally:
        gate.touch()
        serve.delete("slow")


def test_errors_cross_processes_as_they_are() -> None:
    error = ServiceError(ErrorCode.OVERLOADED, "Busy.", pending=3, limit=2)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.message, copy.detail) == (error.code, error.message, error.detail)
    assert str(copy) == "Busy."


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"models_dir": "models"}, "models_dir must be an absolute path"),
        ({"workers": 2}, "set api_replicas and embedding_replicas"),
        ({"tls_certificate": "/c.pem", "tls_key": "/k.pem"}, "let a proxy before Ray Serve end TLS"),
        ({"database_url": "sqlite:///here.db"}, "must be sqlite:////absolute/FILE"),
        ({"embedding_replicas": 0}, "argument embedding_replicas: .*, got 0"),
        ({"replicas": 2}, "argument replicas: there is no such setting; the nearest are api_replicas"),
    ],
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, Any], said: str) -> None:
    right = {"models_dir": "/models", "database_url": "sqlite:////data/classifiers.db"}
    Options.model_validate(right)
    with pytest.raises(StartupError, match=said):
        Options.model_validate(right | wrong)


def test_options_are_read_as_the_servers_settings_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument wins over a variable, and that over the file."""
    file = tmp_path / "comln.toml"
    file.write_text("models_dir = '/file'\nmax_images = 1\nmax_queue_seconds = 1\nport = 1")
    monkeypatch.setenv("COMLN_CONFIG", str(file))
    monkeypatch.setenv("COMLN_MAX_IMAGES", "2")
    monkeypatch.setenv("COMLN_MAX_QUEUE_SECONDS", "2")
    monkeypatch.setenv("COMLN_API_REPLICAS", "2")
    right = {"database_url": "postgresql://database/comln", "max_queue_seconds": 3}
    options = Options.model_validate(right)
    assert (options.models_dir, options.port) == (Path("/file"), 1)
    assert (options.max_images, options.max_queue_seconds, options.api_replicas) == (2, 3, 2)
    assert Options.model_validate(right | {"config": str(file)}).models_dir == Path("/file")
    with pytest.raises(StartupError, match=r"absent\.toml: cannot be read"):
        Options.model_validate(right | {"config": str(tmp_path / "absent.toml")})
    monkeypatch.setenv("COMLN_API_REPLICA", "2")
    with pytest.raises(StartupError, match=r"^COMLN_API_REPLICA: .* COMLN_API_REPLICAS"):
        Options.model_validate(right)


def test_the_server_knows_the_variables_of_the_application() -> None:
    assert set(OF_RAY) == set(Options.model_fields) - set(Settings.model_fields) - {"config"}


def test_a_share_of_a_gpu_means_cuda_or_nothing() -> None:
    right = {"models_dir": "/models", "database_url": "postgresql://database/comln"}
    on_gpu = Options.model_validate(right | {"gpus_per_replica": "0.5"})
    assert on_gpu.embedding_settings.provider == "cuda"
    assert Options.model_validate(right).embedding_settings.provider == "cpu"


def test_the_sample_configuration_is_ray_serves_and_ours() -> None:
    text = (REPOSITORY / "deploy" / "ray" / "serve.yaml").read_text()
    (application,) = ServeDeploySchema.model_validate(yaml.safe_load(text)).applications
    assert application.import_path == f"{build.__module__.rpartition('.')[0]}:{build.__name__}"
    Options.model_validate(application.args)
    assert {deployment.name for deployment in application.deployments} == {"Api", "Embedding"}
