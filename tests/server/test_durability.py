"""Classifiers that the server has acknowledged survive `kill -9` at any moment."""

import random
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import httpx2
import pytest

from comln_serve.engine.engine import Engine
from tests.support import http
from tests.support.engines import MakeEngine, predict
from tests.support.image_files import colour_support, image_bytes
from tests.support.live import LiveServer, live_server
from tests.support.messages import adapt_form, predict_form
from tests.support.paging import all_classifiers
from tests.support.serving import served

CLIENTS = 6
NAMES = ("letters", "digits", None)
SUPPORTS = [colour_support(shots) for shots in (1, 2, 3)]
LABELS = ("red", "green", "blue")  # as in the supports
QUERIES = [image_bytes(colour, seed=5) for colour in ((200, 60, 20), (20, 200, 60), (90, 90, 90))]


@dataclass
class Ledger:
    """What the clients have sent and what was acknowledged, by request number."""

    sent: int = 0
    unanswered: list[int] = field(default_factory=list[int])
    made: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    replayed: int = 0
    _lock: Lock = field(default_factory=Lock)

    def next(self) -> int:
        """A request that got no answer, if it can be repeated; else a new one."""
        with self._lock:
            if self.unanswered:
                return self.unanswered.pop()
            self.sent += 1
            return self.sent

    def acknowledge(self, number: int, answer: httpx2.Response) -> None:
        assert answer.status_code == 201, answer.text
        with self._lock:
            self.made[number] = answer.json()
            self.replayed += "idempotency-replayed" in answer.headers

    def lost(self, number: int) -> None:
        if has_key(number):
            with self._lock:
                self.unanswered.append(number)


def has_key(number: int) -> bool:
    """Two requests of three can be repeated."""
    return number % 3 > 0


def send(session: httpx2.Client, number: int) -> httpx2.Response:
    """The request of that number; the same each time."""
    name = NAMES[number % 7 % 3]
    options = {"metadata": f'{{"number": "{number}"}}'} | ({} if name is None else {"name": name})
    headers = {"Idempotency-Key": f"request-{number}"} if has_key(number) else {}
    support = SUPPORTS[number % len(SUPPORTS)]
    return session.post("/adapt", headers=headers, **adapt_form(support, **options))


@contextmanager
def busy_clients(server: LiveServer, ledger: Ledger) -> Generator[None, None, None]:
    """Threads that adapt until the server does not answer any more."""
    failures: list[BaseException] = []

    def work() -> None:
        with http.session(base_url=server.url) as session:
            while True:
                number = ledger.next()
                try:
                    ledger.acknowledge(number, send(session, number))
                except httpx2.TransportError:
                    ledger.lost(number)
                    return
                except BaseException as error:  # noqa: BLE001 - for the test to see
                    failures.append(error)
                    return

    threads = [Thread(target=work) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        server.process.kill()
        server.process.wait()
        for thread in threads:
            thread.join()
    assert not failures, failures


def expected_predictions(engine: Engine) -> list[Any]:
    """What classifiers of the supports answer, made in peace by another server."""
    found: list[Any] = []
    for support in SUPPORTS:
        made = engine.adapt(support).classifier
        found.append(predict(engine, QUERIES, made.id).probabilities.tolist())
    return found


def check_all_there(session: httpx2.Client, ledger: Ledger, expected: list[Any]) -> None:
    listed = {item["id"]: item for item in all_classifiers(session)}
    for number, made in ledger.made.items():
        shown = listed[made["id"]]
        assert shown | {"promoted": None} == {
            key: value for key, value in made.items() if key not in {"timings_ms", "report"}
        } | {"promoted": None}, number
    of_number = Counter(int(item["metadata"]["number"]) for item in listed.values())
    assert set(of_number.values()) == {1}, "no request has made two"
    repeatable = {number for number in range(1, ledger.sent + 1) if has_key(number)}
    assert repeatable <= set(of_number), "those that were repeated have been made"
    assert repeatable <= set(ledger.made)
    for number, made in ledger.made.items():
        body = predict_form(*QUERIES, classifier=made["id"], top_k=3)
        answer = session.post("/predict", **body).raise_for_status()
        found = [
            [one["probability"] for label in LABELS for one in item["top"] if one["label"] == label]
            for item in answer.json()["predictions"]
        ]
        assert found == expected[number % len(SUPPORTS)]


def check_versions(session: httpx2.Client, ledger: Ledger) -> None:
    """No number is given twice; a name stands for the newest, acknowledged or later."""
    for name in filter(None, NAMES):
        made = [answer["version"] for answer in ledger.made.values() if answer["name"] == name]
        there = [item["version"] for item in all_classifiers(session, name=name)]
        assert there == sorted(set(there), reverse=True)
        assert set(made) <= set(there)
        promoted = session.get(f"/classifiers/{name}").json()
        assert promoted["promoted"]
        assert promoted["version"] == there[0] >= max(made)


@pytest.mark.slow
def test_killed_at_random_moments_of_adapting(
    models_dir: Path, tmp_path: Path, database_url: str, make_engine: MakeEngine
) -> None:
    moments = random.Random(0)
    ledger = Ledger()
    for goal in range(40, 321, 40):
        with (
            live_server(models_dir, tmp_path, "--default-model", "tiny", database_url=database_url) as server,
            busy_clients(server, ledger),
        ):
            while len(ledger.made) < goal and server.process.poll() is None:
                time.sleep(0.005)
            time.sleep(moments.uniform(0, 0.05))
    assert len(ledger.made) >= 320
    survivor = make_engine(database_url=database_url)
    with served(survivor) as url, http.session(base_url=url) as session:
        while ledger.unanswered:
            number = ledger.unanswered.pop()
            ledger.acknowledge(number, send(session, number))
        check_all_there(session, ledger, expected_predictions(make_engine()))
        check_versions(session, ledger)
