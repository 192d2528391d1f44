"""The requests of the benchmark of full databases."""

from typing import Any

import numpy as np

from benchmarks.filled import name_of
from benchmarks.stored import FEW, Requests, Side, one_round


class Recorder:
    """Stands in for a server, and keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def call(self, _method: str, path: str, _body: bytes | None = None) -> Any:
        self.asked.append(path)


def test_no_version_of_a_model_that_is_not_served_is_asked_for() -> None:
    """The first version of the first name is of such a model: a server refuses to promote it."""
    server: Any = Recorder()
    requests = Requests(adapt=lambda _: b"", one_more=b"", predict=lambda _: b"")
    rng = np.random.default_rng(0)
    for turn in range(2 * FEW):
        one_round(Side("", FEW, server, server), requests, turn, rng)
    assert any(path.endswith("/promote") for path in server.asked)
    assert not [path for path in server.asked if f"/{name_of(0)}@" in path]
