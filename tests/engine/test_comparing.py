"""Which images are examples of a classifier: for one request at a time, which waits neither for ever nor for nobody."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from comln_serve.engine.adapting.changes import RemoveExamples
from comln_serve.engine.cancellation import Caller
from comln_serve.engine.engine import Engine, NewClassifier
from comln_serve.errors import ErrorCode
from comln_serve.storage import TenantStore
from tests.support.engines import MakeEngine, fails, predict
from tests.support.image_files import colour_support, image_bytes
from tests.support.waiting import wait_until

SUPPORT = colour_support(2)
FILES = [SUPPORT[1][0], image_bytes((3, 90, 200), seed=99), SUPPORT[0][0]]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The classifiers whose support sets are read."""
    found: list[str] = []
    support = TenantStore.support

    def noted(self: TenantStore, reference: str) -> Any:
        found.append(reference)
        return support(self, reference)

    monkeypatch.setattr(TenantStore, "support", noted)
    return found


def test_the_embeddings_of_examples_are_kept_for_the_next_request(engine: Engine, reads: list[str]) -> None:
    made = engine.adapt(SUPPORT).classifier
    for _ in range(3):
        predicted = predict(engine, FILES, made.id, examples=True)
        assert predicted.examples == (2, None, 1)
        assert "compare" in predicted.timings_ms
    assert reads == [made.id]
    engine.change(made.id, RemoveExamples([1]))
    assert predict(engine, FILES, made.id, examples=True).examples == (2, None, None), "it changed in place"
    others = [(image_bytes((60 * i, 220, 90), seed=50 + i), "ab"[i % 2]) for i in range(4)]
    other = engine.adapt(others, NewClassifier(name="other")).classifier
    assert predict(engine, FILES, "other", examples=True).examples == (None, None, None)
    assert reads[-1] == other.id


def test_large_ones_are_not_kept(engine: Engine, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comln_serve.engine.classifiers.comparing._KEPT_BYTES", 10)
    made = engine.adapt(SUPPORT).classifier
    for _ in range(2):
        assert predict(engine, FILES, made.id, examples=True).examples == (2, None, 1)
    assert reads == [made.id] * 2


def test_who_waits_leaves_with_its_client(engine: Engine) -> None:
    made = engine.adapt(SUPPORT).classifier
    caller = Caller()
    queue = engine._comparisons._queue
    with queue.turn(Caller()), ThreadPoolExecutor(1) as threads:  # as if another request had its turn
        waiting = threads.submit(predict, engine, FILES, made.id, caller, examples=True)
        wait_until(lambda: queue._admission.pending == 2)
        caller.cancellation.cancel()
        fails(ErrorCode.CLIENT_GONE, lambda: waiting.result(30))
    assert predict(engine, FILES, made.id, examples=True).examples == (2, None, 1)


def test_nobody_waits_for_ever_and_not_many_do(make_engine: MakeEngine) -> None:
    engine = make_engine(max_queue_seconds=0.3)
    made = engine.adapt(SUPPORT).classifier
    queue = engine._comparisons._queue
    with queue.turn(Caller()):
        fails(ErrorCode.QUEUE_TIMEOUT, lambda: predict(engine, FILES, made.id, examples=True))
        with ExitStack() as others:
            for _ in range(15):
                others.enter_context(queue._admission.admit())
            error = fails(ErrorCode.OVERLOADED, lambda: predict(engine, FILES, made.id, examples=True))
        assert error.detail == {"pending": 16, "received": 1, "limit": 16}
        assert "the field examples asks for" in error.message
    assert predict(engine, FILES, made.id).examples is None, "others are not kept waiting"
    assert predict(engine, FILES, made.id, examples=True).examples == (2, None, 1)
