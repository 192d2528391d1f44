"""Many clients doing everything at once, each beside a small model of what must hold for it.

Every client has a name of its own, which it knows all about, and shares another with all, of which
it knows what it did itself: its versions ascend, and what it deleted stays deleted.
"""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support import http
from tests.support.image_files import colour_support, image_bytes
from tests.support.live import live_server
from tests.support.messages import adapt_form, predict_form
from tests.support.paging import all_classifiers

CLIENTS = 6
SUPPORT = colour_support(1)
RED = image_bytes((220, 30, 30), seed=9)
SHARED = "shared"


class Client:
    """One client, and what it knows."""

    def __init__(self, url: str, number: int) -> None:
        self.session = http.session(base_url=url, timeout=120)
        self.name = f"client-{number}"
        self.random = random.Random(number)
        self.there: dict[int, str] = {}  # version -> id, of its own name
        self.promoted: list[int] = []  # its versions that were promoted, latest last
        self.given = 0
        self.gone: set[str] = set()
        self.of_shared: list[tuple[int, str]] = []  # version and id of what it made there

    def run(self, operations: int) -> None:
        actions: list[Callable[[], None]] = [
            self.adapt,
            self.adapt,
            self.add_example,
            self.remove_example,
            self.promote,
            self.roll_back,
            self.delete,
            self.predict,
            self.share,
            self.delete_shared,
            self.look,
        ]
        for _ in range(operations):
            self.random.choice(actions)()
        self.look()

    # --- Its own name ----------------------------------------------------------------------------

    @property
    def current(self) -> int | None:
        """The version its name should stand for."""
        return (self.promoted or sorted(self.there) or [None])[-1]

    def adapt(self) -> None:
        promote = self.random.random() < 0.6
        form = adapt_form(SUPPORT, name=self.name, promote=str(promote).lower())
        self.made(self.session.post("/adapt", **form), promote=promote)

    def add_example(self) -> None:
        if self.there:
            form = adapt_form([(RED, self.random.choice(["red", "more"]))])
            self.made(self.session.post(f"/classifiers/{self.name}/examples", **form))

    def remove_example(self) -> None:
        answer = self.session.get(f"/classifiers/{self.name}/examples")
        if not self.there:
            assert answer.status_code == 404
            return
        examples = answer.raise_for_status().json()["examples"]
        number = self.random.choice(examples)["number"]
        answer = self.session.delete(f"/classifiers/{self.name}/examples/{number}")
        left = {item["label"] for item in examples if item["number"] != number}
        if len(left) < 2:
            assert answer.status_code == 422
        else:
            self.made(answer)

    def made(self, answer: httpx2.Response, *, promote: bool = True) -> None:
        """There is one more version of its name."""
        assert answer.is_success, answer.text
        body = answer.json()
        self.given += 1
        if not promote and self.there and not self.promoted:
            self.promoted.append(max(self.there))
        expected = promote or not self.there
        if expected:
            self.promoted.append(self.given)
        assert (body["version"], body["promoted"]) == (self.given, expected)
        self.there[self.given] = body["id"]

    def promote(self) -> None:
        if self.there:
            version = self.random.choice(list(self.there))
            answer = self.session.post(f"/classifiers/{self.name}@{version}/promote")
            assert answer.json()["promoted"] is True
            self.promoted = [*(v for v in self.promoted if v != version), version]

    def roll_back(self) -> None:
        answer = self.session.post(f"/classifiers/{self.name}/rollback")
        if not self.there:
            assert answer.status_code == 404
        elif len(self.promoted) < 2:
            assert answer.status_code == 409
        else:
            self.promoted.pop()
            assert answer.json()["version"] == self.promoted[-1]

    def delete(self) -> None:
        if self.there:
            version = self.random.choice(list(self.there))
            self.gone.add(self.there.pop(version))
            self.promoted = [v for v in self.promoted if v != version]
            answer = self.session.delete(f"/classifiers/{self.name}@{version}")
            assert answer.status_code == 204

    def predict(self) -> None:
        answer = self.session.post("/predict", **predict_form(RED, classifier=self.name))
        if self.current is None:
            assert answer.status_code == 404
        else:
            assert answer.json()["classifier"] == self.there[self.current]
        if self.gone:
            absent = self.random.choice(sorted(self.gone))
            answer = self.session.post("/predict", **predict_form(RED, classifier=absent))
            assert answer.status_code == 404

    # --- The name of all -------------------------------------------------------------------------

    def share(self) -> None:
        answer = self.session.post("/adapt", **adapt_form(SUPPORT, name=SHARED))
        made = answer.raise_for_status().json()
        assert all(version < made["version"] for version, _ in self.of_shared)
        self.of_shared.append((made["version"], made["id"]))

    def delete_shared(self) -> None:
        if self.of_shared:
            identifier = self.of_shared[-1][1]  # stays there, so that its number is remembered
            if identifier not in self.gone:
                self.gone.add(identifier)
                assert self.session.delete(f"/classifiers/{identifier}").status_code == 204
            assert self.session.delete(f"/classifiers/{identifier}").status_code == 404

    # --- What is listed --------------------------------------------------------------------------

    def look(self) -> None:
        """Pages made while others write: nothing twice, nothing that is gone, nothing missing."""
        own = all_classifiers(self.session, limit=3, name=self.name)
        assert [(item["version"], item["id"], item["promoted"]) for item in own] == [
            (version, self.there[version], version == self.current) for version in sorted(self.there, reverse=True)
        ]
        listed = [item["id"] for item in all_classifiers(self.session, limit=self.random.randint(2, 40))]
        assert len(set(listed)) == len(listed)
        assert not self.gone & set(listed)
        mine = {*self.there.values(), *(identifier for _, identifier in self.of_shared)}
        assert mine - self.gone <= set(listed)
        shared = [item["version"] for item in all_classifiers(self.session, limit=5, name=SHARED)]
        assert shared == sorted(set(shared), reverse=True)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("operations", [15, pytest.param(100, marks=pytest.mark.slow)])
def test_clients_find_what_they_did_while_others_do_everything(
    models_dir: Path, tmp_path: Path, database_url: str, operations: int
) -> None:
    flags = ("--default-model", "tiny", "--log-level", "warning")
    with live_server(models_dir, tmp_path, *flags, database_url=database_url) as server:
        clients = [Client(server.url, number) for number in range(CLIENTS)]
        with ThreadPoolExecutor(CLIENTS) as pool:
            for done in [pool.submit(client.run, operations) for client in clients]:
                done.result()
        versions: list[Any] = [v for client in clients for v, _ in client.of_shared]
        assert len(set(versions)) == len(versions), "no number is given twice"
        for client in clients:
            client.session.close()
        assert http.get(f"{server.url}/health/ready").status_code == 200
        assert "Traceback" not in server.log.read_text()
