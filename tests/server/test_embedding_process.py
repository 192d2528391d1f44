"""One process embeds for several that serve: when there is one, and what happens as it is killed, reloaded, stopped."""

import os
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from comln_serve import starting
from comln_serve.configuration.settings import Settings
from comln_serve.counts import SharedCounts
from comln_serve.errors import StartupError
from comln_serve.server.supervisor import Supervisor
from comln_serve.starting import processes
from tests.support import http
from tests.support.image_files import image_bytes
from tests.support.live import LiveServer, live_server
from tests.support.messages import adapt_form, predict_form
from tests.support.processes import alive, children, forked, forks, needs_proc
from tests.support.waiting import wait_until

QUERIES = [image_bytes((200, 60, 20), seed=seed) for seed in range(4)]


@pytest.mark.parametrize(
    ("gpu", "linux", "options", "expected"),
    [
        (False, True, {}, (1, False)),
        (False, True, {"workers": 4}, (4, False)),
        (False, True, {"workers": 4, "embedding_process": "on"}, (4, True)),
        (False, True, {"workers": 1, "embedding_process": "on"}, (1, False)),
        (True, True, {"workers": 4}, (4, True)),
        (True, True, {"workers": 4, "embedding_process": "off"}, (4, False)),
        (True, True, {"workers": 4, "provider": "cpu"}, (4, False)),
        (True, True, {"workers": "auto"}, (8, True)),
        (True, True, {"workers": "auto", "provider": "cpu"}, (8, False)),
        (True, True, {"workers": "auto", "embedding_process": "off"}, (1, False)),
        (True, False, {"workers": "auto"}, (1, False)),
        (True, False, {"workers": 4}, (4, False)),
    ],
)
def test_when_one_embeds_for_all(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, linux: bool, options: dict[str, object], expected: tuple[int, bool]
) -> None:
    monkeypatch.setattr(starting, "may_have_gpu", lambda: gpu)
    monkeypatch.setattr(starting, "suitable_workers", lambda *, embedder: 8)
    if linux:
        monkeypatch.setattr(os, "memfd_create", lambda _: 0, raising=False)
    else:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    assert processes(Settings.model_validate(options)) == expected


def test_other_systems_refuse_what_they_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with pytest.raises(StartupError, match="embedding-process"):
        processes(Settings(workers=2, embedding_process="on"))
    monkeypatch.delattr(os, "fork", raising=False)
    with pytest.raises(StartupError, match="--workers 1"):
        processes(Settings(workers=2))


@pytest.mark.slow
@needs_proc
@pytest.mark.process
@forks
def test_a_start_ends_where_the_process_that_embeds_cannot_run(tmp_path: Path) -> None:
    shared = SharedCounts(2, tmp_path, embedder=True)

    def work() -> int:
        if shared.process == shared.embedder:
            return 1
        while True:
            signal.pause()

    def supervise() -> None:
        shared.parent = os.getpid()
        with pytest.raises(StartupError, match="ended 5 times"):
            Supervisor(shared, work, lambda: None).run()
        assert [process for process in children(os.getpid()) if alive(process)] == []

    assert forked(supervise) == 0


@pytest.fixture
def server(models: Path, tmp_path: Path) -> Iterator[LiveServer]:
    flags = ("--default-model", "tiny", "--workers", "2", "--embedding-process", "on")
    with live_server(models, tmp_path, *flags) as server:
        wait_until(lambda: "ready: the page is at" in server.log.read_text())
        yield server


def embedder(server: LiveServer) -> int:
    """The process that embeds."""
    return int(re.findall(r"process (\d+) embeds for 2", server.log.read_text())[-1])


def probabilities(url: str, query: bytes) -> list[dict[str, object]]:
    answer = http.post(f"{url}/predict", **predict_form(query, classifier="known"))
    assert answer.status_code == 200, answer.text
    found: list[dict[str, object]] = answer.json()["predictions"]
    return found


def adapt(url: str) -> None:
    assert http.post(f"{url}/adapt", **adapt_form(name="known")).status_code == 201


@pytest.mark.slow
@needs_proc
@pytest.mark.process
class TestServer:
    def test_predictions_are_those_of_a_server_that_embeds_itself(
        self, server: LiveServer, models_dir: Path, tmp_path: Path
    ) -> None:
        (other := tmp_path / "other").mkdir()
        adapt(server.url)
        with live_server(models_dir, other, "--default-model", "tiny") as plain:
            adapt(plain.url)
            for query in QUERIES:
                assert probabilities(server.url, query) == probabilities(plain.url, query)
        text = http.get(f"{server.url}/metrics").text
        assert "comln_workers 2.0" in text, "the one that embeds does not serve"

    def test_no_request_fails_as_it_is_killed(self, server: LiveServer) -> None:
        adapt(server.url)
        expected = [probabilities(server.url, query) for query in QUERIES]
        killed: list[int] = []
        until = time.monotonic() + 8

        def ask(place: int) -> bool:
            same = True
            while time.monotonic() < until:
                same = same and probabilities(server.url, QUERIES[place]) == expected[place]
            return same

        with ThreadPoolExecutor(4) as threads:
            answers = [threads.submit(ask, place) for place in range(4)]
            while len(killed) < 3 and time.monotonic() < until:
                if (victim := embedder(server)) not in killed:
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)
                time.sleep(0.2)
            assert all(answer.result() for answer in answers)
        assert len(killed) == 3
        wait_until(lambda: f"comln_worker_restarts_total {len(killed)}.0" in http.get(f"{server.url}/metrics").text)

    def test_it_opens_what_a_reload_finds(self, server: LiveServer, models: Path) -> None:
        shutil.copytree(models / "tiny", models / "new")
        (models / "tiny-learned").rename(models.parent / "away")
        answer = http.post(f"{server.url}/models/reload")
        assert answer.status_code == 200, answer.text
        assert (answer.json()["added"], answer.json()["removed"]) == (["new"], ["tiny-learned"])
        wait_until(lambda: server.log.read_text().count("models reloaded: added new") == 2)  # by both workers
        assert http.post(f"{server.url}/adapt", **adapt_form(name="known", model="new")).status_code == 201
        assert probabilities(server.url, QUERIES[0])

    @pytest.mark.parametrize("killed", [False, True])
    def test_it_ends_after_those_that_serve_have_drained(self, server: LiveServer, killed: bool) -> None:
        """If it dies as they begin to, another takes its place."""
        adapt(server.url)
        all_of_them = children(server.process.pid)
        assert embedder(server) in all_of_them

        def ask(_: int) -> int:
            return http.post(f"{server.url}/predict", **predict_form(*QUERIES * 60, classifier="known")).status_code

        with ThreadPoolExecutor(4) as threads:
            answers = [threads.submit(ask, i) for i in range(4)]
            wait_until(lambda: 'comln_pending{unit="requests"} 0' not in http.get(f"{server.url}/metrics").text)
            os.kill(embedder(server), signal.SIGKILL if killed else signal.SIGTERM)  # as systemd does
            server.process.terminate()
            statuses = Counter(answer.result() for answer in answers if answer.exception() is None)
        assert set(statuses) == {200}
        assert server.process.wait(timeout=60) == 0
        assert not any(map(alive, all_of_them))

    def test_all_end_when_their_parent_is_killed(self, server: LiveServer) -> None:
        all_of_them = children(server.process.pid)
        server.process.kill()
        wait_until(lambda: not any(map(alive, all_of_them)))

    def test_nobody_waits_for_it_when_its_parent_is_killed_too(self, server: LiveServer) -> None:
        adapt(server.url)
        os.kill(embedder(server), signal.SIGSTOP)  # requests wait for it
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(http.post, f"{server.url}/predict", **predict_form(*QUERIES, classifier="known"))
            wait_until(lambda: 'comln_pending{unit="requests"} 1' in http.get(f"{server.url}/metrics").text)
            server.process.kill()
            os.kill(embedder(server), signal.SIGKILL)
            answer = waiting.result(10)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")

    @pytest.mark.alone
    def test_one_that_hangs_is_replaced(self, server: LiveServer) -> None:
        adapt(server.url)
        stopped = embedder(server)
        os.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: not alive(stopped))
        assert probabilities(server.url, QUERIES[0])
