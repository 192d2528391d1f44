"""Several processes behind one socket: limits hold for all of them together, and none is missed when it is killed."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from comln_serve.counts import Count, SharedCounts
from comln_serve.engine.admission import Admission
from comln_serve.errors import ErrorCode
from comln_serve.security.keys import Scope
from comln_serve.security.rate_limit import RateLimiter
from comln_serve.server.supervisor import _HANGS_AFTER_S, Supervisor
from comln_serve.storage import Store
from tests.support import http
from tests.support.engines import fails
from tests.support.image_files import image_bytes
from tests.support.keyed import bearer, new_key
from tests.support.live import START_SECONDS, LiveServer, live_server
from tests.support.messages import adapt_form, predict_form
from tests.support.processes import alive, children, forked, forks, needs_proc
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, needs_proc, pytest.mark.process]

QUERY = image_bytes((200, 60, 20), seed=5)


@pytest.fixture
def server(models_dir: Path, tmp_path: Path) -> Iterator[LiveServer]:
    with live_server(models_dir, tmp_path, "--default-model", "tiny", "--workers", "2") as server:
        wait_until(lambda: len(workers(server)) == 2 and metric(server, "comln_models_ready") == 1)
        yield server


def workers(server: LiveServer) -> list[int]:
    """The processes that serve."""
    return children(server.process.pid)


def metric(server: LiveServer, name: str) -> float:
    """The sum of a metric's series."""
    text = http.get(f"{server.url}/metrics").text
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (.*)$", text, re.MULTILINE))


def adapt(server: LiveServer, **fields: str) -> str:
    answer = http.post(f"{server.url}/adapt", **adapt_form(**fields))
    assert answer.status_code == 201, answer.text
    identifier: str = answer.json()["id"]
    return identifier


@forks
def test_what_one_process_admits_the_others_count() -> None:
    shared = SharedCounts(2)
    admission = Admission(5, Count.IMAGES, shared)

    def other() -> None:
        shared.process = 1
        Admission(5, Count.IMAGES, shared, by_tenant=True).take(3, tenant="acme")

    assert forked(other) == 0
    with admission.admit(2):
        assert shared.total(Count.IMAGES) == 5
        error = fails(ErrorCode.OVERLOADED, lambda: admission.take(1))
        assert error.detail["pending"] == 5
    assert shared.of_tenant(Count.IMAGES, "acme") == 3
    shared.replace(1)
    assert [shared.total(Count.IMAGES), shared.of(1, Count.RESTARTS)] == [0, 1], "a dead process holds nothing"
    assert shared.of_tenant(Count.IMAGES, "acme") == 0
    with admission.admit(5):
        pass


@forks
def test_processes_share_the_bucket_of_a_key(tmp_path: Path) -> None:
    def other() -> None:
        with closing(RateLimiter(tmp_path / "buckets")) as there:
            assert there.take("a", 2) == 0.0

    assert forked(other) == 0
    with closing(RateLimiter(tmp_path / "buckets")) as here:
        assert here.take("a", 2) == 0.0
        assert 0.0 < here.take("a", 2) <= 30.0


def test_every_process_serves_and_any_tells_the_metrics_of_all(server: LiveServer) -> None:
    identifier = adapt(server)
    before = metric(server, "comln_predictions_total")

    def ask(_: int) -> None:
        with http.session() as client:
            for _ in range(5):
                answer = client.post(f"{server.url}/predict", **predict_form(QUERY, classifier=identifier))
                assert answer.status_code == 200, answer.text

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(24)))
    # A request is counted out after its answer has been sent.
    wait_until(
        lambda: metric(server, "comln_predictions_total") - before == 120 and not metric(server, "comln_pending")
    )
    assert [metric(server, "comln_predictions_total") - before for _ in range(6)] == [120.0] * 6
    assert metric(server, "comln_workers") == 2

    def both_serve() -> bool:
        """On a busy machine one of them may have taken all connections so far."""
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(ask, range(8)))
        lines = server.log.read_text().splitlines()
        return set(re.findall(r'"worker": (\d)', "\n".join(line for line in lines if "/predict" in line))) == {"0", "1"}

    wait_until(both_serve)
    assert metric(server, "process_resident_memory_bytes") > 2 * 50e6


def test_a_killed_process_loses_nothing_acknowledged_and_another_takes_its_place(server: LiveServer) -> None:
    """Requests on the connections of the killed process end; every new connection is served at once."""
    kept = [adapt(server, name=f"before-{i}") for i in range(3)]
    for victim in workers(server):
        os.kill(victim, signal.SIGKILL)
        longest, until = 0.0, time.monotonic() + 3
        while time.monotonic() < until:
            began = time.monotonic()
            for _ in range(2):  # the first may have been accepted by the process that died
                try:
                    answer = http.post(f"{server.url}/predict", **predict_form(QUERY, classifier=kept[0]))
                    break
                except httpx2.TransportError:
                    continue
            else:
                pytest.fail("refused twice")
            assert answer.status_code == 200, answer.text
            kept.append(adapt(server))
            longest = max(longest, time.monotonic() - began)
        assert longest < 10  # seconds, with an adaptation; the machine may be busy
        wait_until(lambda: len(workers(server)) == 2 and metric(server, "comln_workers") == 2)
    assert metric(server, "comln_worker_restarts_total") == 2
    assert all(http.get(f"{server.url}/classifiers/{ref}").status_code == 200 for ref in kept)


def test_the_signal_to_stop_reaches_all_and_they_finish_what_runs(server: LiveServer) -> None:
    identifier = adapt(server)
    processes = workers(server)

    def ask(_: int) -> int:
        body = predict_form(*[QUERY] * 250, classifier=identifier)  # enough to be seen at work
        return http.post(f"{server.url}/predict", **body).status_code

    with ThreadPoolExecutor(6) as threads:
        answers = [threads.submit(ask, i) for i in range(6)]
        wait_until(lambda: metric(server, "comln_pending") > 0)
        server.process.send_signal(signal.SIGTERM)
        statuses = Counter(answer.result() for answer in answers if answer.exception() is None)
    assert set(statuses) == {200}
    assert server.process.wait(timeout=60) == 0
    assert not any(map(alive, processes))


@forks
@pytest.mark.parametrize("processes", [2, 24])
def test_a_process_that_is_told_to_end_while_it_loads_is_no_failure(processes: int) -> None:
    """Nor is any left that would have been started after the signal."""
    shared = SharedCounts(processes)

    def work() -> int:
        if shared.process == 0:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            shared.set(Count.READY, 1)
        else:
            os.kill(shared.parent, signal.SIGTERM)
        while True:
            signal.pause()

    def supervise() -> None:
        shared.parent = os.getpid()
        assert Supervisor(shared, work, lambda: None).run() == 0

    assert forked(supervise) == 0


def test_a_bundle_that_cannot_be_used_ends_the_start(models_dir: Path, tmp_path: Path) -> None:
    """As it does with one process: a message, and the status of a wrong configuration."""
    folder = shutil.copytree(models_dir / "tiny", tmp_path / "models" / "tiny")
    (folder / "head.safetensors").write_bytes(b"x")
    command = [sys.executable, "-m", "comln_serve.cli", "--models-dir", str(folder.parent), "--provider", "cpu"]
    command += ["--workers", "2", "--port", "0", "--database-url", f"sqlite:///{tmp_path / 'classifiers.db'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False)
    assert done.returncode == 2
    assert f"comln-serve: {folder / 'head.safetensors'}: 1 bytes; bundle.json says" in done.stderr
    assert "Traceback" not in done.stderr


def test_processes_whose_parent_was_killed_end(server: LiveServer) -> None:
    processes = workers(server)
    server.process.kill()
    wait_until(lambda: not any(map(alive, processes)))


@pytest.mark.alone
def test_a_process_that_hangs_is_replaced(server: LiveServer) -> None:
    stopped = workers(server)[0]
    os.kill(stopped, signal.SIGSTOP)
    wait_until(lambda: not alive(stopped))
    wait_until(lambda: metric(server, "comln_workers") == 2)


@pytest.mark.alone
def test_processes_that_were_all_stopped_go_on(server: LiveServer) -> None:
    """As by `docker pause`, for longer than one that hangs is waited for."""
    processes = [server.process.pid, *workers(server)]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    time.sleep(_HANGS_AFTER_S + 2)
    for process in processes:
        os.kill(process, signal.SIGCONT)
    time.sleep(3)  # several looks of the parent
    assert workers(server) == processes[1:]
    assert metric(server, "comln_worker_restarts_total") == 0


def test_a_keys_rate_is_of_all_processes(models_dir: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    store = Store(url)
    key = bearer(new_key(store, "acme", Scope.PREDICT, requests_per_minute=12))
    store.close()
    flags = ("--default-model", "tiny", "--workers", "2", "--require-keys")
    with live_server(models_dir, tmp_path, *flags, database_url=url) as server:
        wait_until(lambda: server.log.read_text().count("Application startup complete") == 2)
        with ThreadPoolExecutor(10) as threads:
            answers = list(threads.map(lambda _: http.get(f"{server.url}/models", headers=key).status_code, range(30)))
    allowed = Counter(answers)[200]
    assert 12 <= allowed <= 14, Counter(answers)  # the bucket fills while they are sent
    assert set(answers) == {200, 429}
