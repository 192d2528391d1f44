"""The engine with many requests at once: results do not mix, waiting is bounded, overload is refused."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest

from comln_serve.bundle import Head
from comln_serve.counts import Count, SharedCounts
from comln_serve.domain.classifier import Classifier
from comln_serve.engine.adapting import adaptation
from comln_serve.engine.admission import Admission
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.embedding import decoders
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.engine.embedding.batcher import Batcher
from comln_serve.engine.engine import Caller, Engine, NewClassifier
from comln_serve.errors import ErrorCode, ServiceError
from tests.support.engines import MakeEngine, batcher_of, before_each_batch, fails, predict
from tests.support.image_files import colour_support, image_bytes
from tests.support.waiting import Gate, wait_until

COLOURS = [(220, 30, 30), (30, 220, 30), (30, 30, 220), (220, 220, 30), (30, 220, 220)]


@pytest.mark.parametrize("together", [True, False])
def test_fifty_adaptations_at_once_do_not_mix(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """Whether batches are as on a GPU or as on a CPU, each classifier is the one it would be alone."""
    monkeypatch.setattr(OnnxBackbone, "on_gpu", together)
    engine = make_engine()
    engine.warm()

    def support(task: int) -> list[tuple[bytes, str]]:
        chosen = [COLOURS[(task + i) % 5] for i in range(2 + task % 4)]
        return [(image_bytes(c, seed=task), f"{task}-{i}") for i, c in enumerate(chosen)]

    batcher, sizes, many_wait = batcher_of(engine), list[int](), Event()
    requests = list[int]()  # in each batch

    embed = Batcher._embed

    def counted(self: Batcher, items: Sequence[Any], *, alone: bool) -> None:
        requests.append(len({item.job for item in items}))
        embed(self, items, alone=alone)

    monkeypatch.setattr(Batcher, "_embed", counted)

    def hold_first(count: int) -> None:
        """However busy the machine is: many images wait once a thread takes its second batch."""
        sizes.append(count)
        wait_until(lambda: many_wait.is_set() or batcher.queued > 16)
        many_wait.set()

    before_each_batch(engine, hold_first)
    with ThreadPoolExecutor(50) as pool:
        all_made = list(pool.map(lambda task: engine.adapt(support(task)).classifier, range(50)))
    assert max(requests) > 1, "some batches held images of several requests"
    assert (max(sizes) > 8) == together, "batches are small on a CPU"
    assert sum(sizes) == sum(classifier.W.shape[0] for classifier in all_made)
    for task, made in enumerate(all_made):
        alone = engine.adapt(support(task)).classifier
        assert made.labels == alone.labels == tuple(f"{task}-{i}" for i in range(2 + task % 4))
        np.testing.assert_allclose(made.W, alone.W, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("batched")
def test_one_batch_answers_for_many_classifiers(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.warm()
    made = [engine.adapt(colour_support(), NewClassifier(horizon=10.0 * (i + 1))).classifier for i in range(8)]
    queries = [image_bytes(COLOURS[i % 5], seed=50 + i) for i in range(8)]
    alone = [predict(engine, [query], c.id) for query, c in zip(queries, made, strict=True)]
    batcher = batcher_of(engine)
    sizes, blocked = list[int](), Event()

    def held(count: int) -> None:
        sizes.append(count)
        assert blocked.wait(30)

    before_each_batch(engine, held)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(predict, engine, [queries[0]], made[0].id)
        wait_until(lambda: sizes == [1])
        tasks = [pool.submit(predict, engine, [q], c.id) for q, c in zip(queries, made, strict=True)]
        wait_until(lambda: batcher.queued == 8)
        blocked.set()
        first.result(30)
        together = [task.result(30) for task in tasks]
    assert sizes == [1, 8]
    for one, other in zip(together, alone, strict=True):
        assert one.classifier.id == other.classifier.id
        np.testing.assert_allclose(one.probabilities, other.probabilities, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [1, 3])
def test_a_request_that_waits_too_long_for_a_decoder(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """It is told so in time, though no decoder ever looks at it."""
    engine = make_engine(max_queue_seconds=0.2, decode_threads=1)
    adapted = engine.adapt(colour_support()).classifier
    decoding = Gate(monkeypatch, decoders, "fit_views")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(predict, engine, [image_bytes()], adapted.id)
        decoding.wait()
        fails(ErrorCode.QUEUE_TIMEOUT, lambda: predict(engine, [image_bytes()] * count, adapted.id))
        decoding.open()
        first.result(30)
    assert predict(engine, [image_bytes()], adapted.id).probabilities.shape == (1, 3)
    assert engine.images.pending == 0


def test_work_of_a_client_who_has_left_is_dropped(engine: Engine) -> None:
    adapted = engine.adapt(colour_support()).classifier
    gone = Cancellation()
    gone.cancel()
    stored = engine.store.count()
    embedded: list[int] = []
    before_each_batch(engine, embedded.append)
    for action in (
        lambda: engine.adapt(colour_support(), caller=Caller(cancellation=gone)),
        lambda: predict(engine, [image_bytes()], adapted.id, Caller(cancellation=gone)),
        # Not blamed on the image, which nobody looked at.
        lambda: predict(engine, [b"not an image"], adapted.id, Caller(cancellation=gone)),
    ):
        fails(ErrorCode.CLIENT_GONE, action)
    assert embedded == []
    assert engine.store.count() == stored
    assert engine.images.pending == 0


def test_the_solve_of_a_client_who_leaves_is_stopped(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could go on for a minute, and others wait for their turn."""
    cancellation = Cancellation()
    solve = Head.adapt

    def leaves(head: Head, *arguments: Any, **options: Any) -> object:
        cancellation.cancel()
        assert options["cancel"][0]
        return solve(head, *arguments, **options)

    monkeypatch.setattr(Head, "adapt", leaves)
    fails(ErrorCode.CLIENT_GONE, lambda: engine.adapt(colour_support(), caller=Caller(cancellation=cancellation)))
    assert engine.store.count() == 0


def test_nothing_is_stored_for_a_client_who_leaves_after_the_solve(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancellation, fit = Cancellation(), adaptation.fit

    def leaves(*arguments: Any) -> Classifier:
        made = fit(*arguments)
        cancellation.cancel()
        return made

    monkeypatch.setattr(adaptation, "fit", leaves)
    fails(ErrorCode.CLIENT_GONE, lambda: engine.adapt(colour_support(), caller=Caller(cancellation=cancellation)))
    assert engine.store.count() == 0


def test_admission_counts_and_releases() -> None:
    admission = Admission(5, Count.IMAGES, SharedCounts())
    with admission.admit(3):
        with admission.admit(2):
            assert admission.pending == 5
            error = fails(ErrorCode.OVERLOADED, lambda: admission.admit(1).__enter__())
            assert error.detail == {"pending": 5, "received": 1, "limit": 5}
        assert admission.pending == 3
        fails(ErrorCode.OVERLOADED, lambda: admission.admit(3).__enter__())
        assert admission.pending == 3, "what was refused does not count"
    with pytest.raises(KeyError), admission.admit(5):
        raise KeyError
    assert admission.pending == 0


def test_large_requests_leave_room_for_small_ones() -> None:
    """An eighth of the limit, for requests of a 64th of it. One as large as allowed finds room if it is alone."""
    admission = Admission(128, Count.IMAGES, SharedCounts(), largest=60)
    with admission.admit(60), admission.admit(50):
        error = fails(ErrorCode.OVERLOADED, lambda: admission.take(3))
        assert error.detail == {"pending": 110, "received": 3, "limit": 112}
        for _ in range(9):
            admission.take(2)
        assert fails(ErrorCode.OVERLOADED, lambda: admission.take(1)).detail["limit"] == 128
        admission.give_back(17)
        fails(ErrorCode.OVERLOADED, lambda: admission.take(2, before=1))
    with Admission(128, Count.IMAGES, SharedCounts(), largest=128).admit(128):
        pass


def test_no_tenant_takes_the_room_of_others() -> None:
    """The last eighth is for those that hold little, with all their requests."""
    shared = SharedCounts()
    admission = Admission(128, Count.REQUESTS, shared, by_tenant=True)
    for _ in range(112):
        admission.take(1, tenant="many")
    assert fails(ErrorCode.OVERLOADED, lambda: admission.take(1, tenant="many")).detail["limit"] == 112
    with admission.admit(4, tenant="few"):
        fails(ErrorCode.OVERLOADED, lambda: admission.take(1, tenant="few"))
    for _ in range(112):
        admission.give_back(1, tenant="many")
    assert not admission.pending
    assert [shared.of_tenant(Count.REQUESTS, tenant) for tenant in ("many", "few")] == [0, 0]


@pytest.mark.parametrize(
    ("limit", "unit", "processes"),
    [(256, Count.REQUESTS, processes) for processes in (1, 2, 8, 16)] + [(2, Count.EXPORTS, 2), (8, Count.REQUESTS, 4)],
)
def test_no_tenant_takes_the_room_of_others_in_several_processes(limit: int, unit: Count, processes: int) -> None:
    shared = SharedCounts(processes)
    admissions = [Admission(limit, unit, shared, by_tenant=True) for _ in range(processes)]

    def take(process: int, tenant: str) -> bool:
        shared.process = process
        try:
            admissions[process].take(1, tenant=tenant)
        except ServiceError:
            return False
        return True

    for process in range(processes):  # most of them in the first
        while take(process, "many"):
            pass
    assert shared.total(unit) == limit - max(1, limit // 8)
    shared.process = processes - 1
    assert take(processes - 1, "few")


def test_without_tenants_all_of_the_limit_can_be_taken() -> None:
    admission = Admission(8, Count.REQUESTS, SharedCounts())
    for _ in range(8):
        admission.take(1, tenant="")
    fails(ErrorCode.OVERLOADED, lambda: admission.take(1))


def test_of_few_places_one_is_for_others() -> None:
    admission = Admission(4, Count.EXPORTS, SharedCounts(), by_tenant=True)
    for _ in range(3):
        admission.take(1, tenant="many")
    fails(ErrorCode.OVERLOADED, lambda: admission.take(1, tenant="many"))
    admission.take(1, tenant="few")
    Admission(1, Count.EXPORTS, SharedCounts(), by_tenant=True).take(1, tenant="many")


def test_predictions_of_single_images_go_on_beside_large_requests(make_engine: MakeEngine) -> None:
    engine = make_engine(max_images=9, max_pending_images=16)
    adapted = engine.adapt(colour_support()).classifier
    with engine.images.admit(14):
        fails(ErrorCode.OVERLOADED, lambda: predict(engine, [image_bytes()] * 2, adapted.id))
        assert predict(engine, [image_bytes()], adapted.id).probabilities.shape == (1, 3)


def test_a_listener_that_fails_ends_no_thread(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    def fails_to_listen(_count: int, _seconds: float) -> None:
        raise KeyError("gone")

    adapted = engine.adapt(colour_support()).classifier
    batcher_of(engine).on_batch = fails_to_listen
    for _ in range(20):
        assert predict(engine, [image_bytes()], adapted.id).probabilities.shape == (1, 3)
    wait_until(lambda: caplog.text.count("recording a batch's metrics failed") == 20)
    engine.check()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_ended_is_told(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ended it, requests would wait for it in vain."""
    engine = make_engine(max_queue_seconds=0.2)
    engine.warm()
    adapted = engine.adapt(colour_support()).classifier
    engine.check()

    def ends(_: object, *, alone: bool) -> None:
        raise SystemExit

    monkeypatch.setattr(batcher_of(engine), "_embed", ends)
    fails(ErrorCode.QUEUE_TIMEOUT, lambda: predict(engine, [image_bytes()], adapted.id))
    wait_until(lambda: batcher_of(engine).stuck)
    error = fails(ErrorCode.NOT_READY, engine.check)
    assert "'tiny'" in error.message
