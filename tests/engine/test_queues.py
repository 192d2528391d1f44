"""Requests take turns: few at a time, one for each classifier, and waiting is bounded."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event, Lock
from typing import Any

import pytest

from comln_serve.configuration.settings import Settings
from comln_serve.counts import Count, SharedCounts
from comln_serve.engine import queues
from comln_serve.engine.adapting import adaptation
from comln_serve.engine.adapting.changes import RemoveExamples
from comln_serve.engine.cancellation import Caller, Cancellation
from comln_serve.engine.engine import Engine, NewClassifier
from comln_serve.engine.queues import Queue
from comln_serve.errors import ErrorCode
from tests.support.engines import MakeEngine, fails, predict
from tests.support.image_files import colour_support
from tests.support.waiting import Gate, wait_until

MORE = colour_support()
MakeQueue = Callable[[Settings, SharedCounts], Queue]


def queue(at_once: int, max_waiting: int, max_seconds: float = 60, processes: int = 1) -> Queue:
    settings = Settings(max_queue_seconds=max_seconds)
    return Queue(Count.ADAPTATIONS, settings, SharedCounts(processes), at_once, max_waiting)


def at_work(solves: Queue) -> tuple[int, int]:
    """How many turns run in a queue, and how many requests wait."""
    waiting = sum(
        len(members)
        for places in (solves._places, *(one for one, _ in solves._of_one.values()))
        for members in places._waiting._groups.values()
    )
    return solves._admission.pending - waiting, waiting


def held(
    pool: ThreadPoolExecutor, solves: Queue, classifier: str, tenant: str = "", began: list[str] | None = None
) -> tuple[Event, Future[str]]:
    """Ask for a turn on another thread; once it is there, which is noted, it lasts until the event is set."""
    release = Event()

    def solve() -> str:
        with solves.turn(Caller(tenant), classifier):
            if began is not None:
                began.append(classifier)
            assert release.wait(60)
        return classifier

    return release, pool.submit(solve)


def test_a_few_solve_and_a_few_wait() -> None:
    solves = queue(at_once=2, max_waiting=1)
    with ThreadPoolExecutor(3) as pool:
        turns = [held(pool, solves, classifier) for classifier in "abc"]
        wait_until(lambda: at_work(solves) == (2, 1))
        error = fails(ErrorCode.OVERLOADED, lambda: solves.turn(Caller(), "d").__enter__())
        assert "3 adaptations are under way" in error.message
        for release, _ in turns:
            release.set()
        assert [future.result() for _, future in turns] == ["a", "b", "c"]
    with solves.turn(Caller(), "d"):
        pass


def test_changes_of_one_classifier_wait_for_each_other_and_keep_nobody_else() -> None:
    solves = queue(at_once=2, max_waiting=9)
    with ThreadPoolExecutor(3) as pool:
        first, second = held(pool, solves, "a"), held(pool, solves, "a")
        wait_until(lambda: at_work(solves) == (1, 1))
        with solves.turn(Caller(), "b"):
            assert at_work(solves) == (2, 1)
        first[0].set()
        assert first[1].result() == "a"
        second[0].set()
        assert second[1].result() == "a"


def test_tenants_take_turns() -> None:
    """However many adaptations of one wait, and whichever came first."""
    solves = queue(at_once=1, max_waiting=9)
    with ThreadPoolExecutor(6) as pool:
        turns, order = {}, list[str]()
        for classifier in ("z", "a1", "a2", "a3", "b1", "b2"):
            turns[classifier] = held(pool, solves, classifier, classifier[0], order)
            wait_until(lambda: at_work(solves) == (1, len(turns) - 1))
        for count in range(1, len(turns) + 1):
            wait_until(lambda count=count: len(order) == count)  # type: ignore[misc]
            release, done = turns[order[-1]]
            release.set()
            done.result(60)
    assert order == ["z", "a1", "b1", "a2", "b2", "a3"]
    assert at_work(solves) == (0, 0)
    assert not solves._of_one, "nothing is kept of classifiers without work"


@pytest.mark.parametrize("processes", [1, 3])
def test_changes_of_one_classifier_leave_places_to_others(processes: int) -> None:
    """They run one at a time, so a hundred of them would keep others out of a queue while cores are idle."""
    solves = queue(at_once=2, max_waiting=16 * processes, processes=processes)
    with ThreadPoolExecutor(9) as pool:
        turns = [held(pool, solves, "a") for _ in range(9)]
        wait_until(lambda: at_work(solves) == (1, 8))
        error = fails(ErrorCode.OVERLOADED, lambda: solves.turn(Caller(), "a").__enter__())
        assert "8 changes of this classifier are waiting" in error.message
        assert error.detail == {"pending": 8, "received": 1, "limit": 8}
        with solves.turn(Caller(), "b"):
            pass
        for release, _ in turns:
            release.set()
        assert {future.result() for _, future in turns} == {"a"}
    with solves.turn(Caller(), "a"):
        pass


def test_who_waits_too_long_or_has_left_goes() -> None:
    solves = queue(at_once=1, max_waiting=9, max_seconds=0.1)
    gone = Cancellation()
    gone.cancel()
    with solves.turn(Caller(), "a"):
        error = fails(ErrorCode.QUEUE_TIMEOUT, lambda: solves.turn(Caller(), "b").__enter__())
        assert error.detail == {"allowed_seconds": 0.1}
        patient = queue(at_once=1, max_waiting=9)
        with patient.turn(Caller(), "a"):
            fails(ErrorCode.CLIENT_GONE, lambda: patient.turn(Caller(cancellation=gone), "b").__enter__())
            assert at_work(patient) == (1, 0)
        assert at_work(solves) == (1, 0)
    with solves.turn(Caller(), "b"):
        pass


def test_who_waits_is_woken_when_a_turn_ends() -> None:
    solves = queue(at_once=1, max_waiting=9)
    with ThreadPoolExecutor(2) as pool:
        first, second = held(pool, solves, "a"), held(pool, solves, "b")
        wait_until(lambda: at_work(solves) == (1, 1))
        for release, _ in (first, second):
            release.set()
        assert (first[1].result(20), second[1].result(20)) == ("a", "b")


@pytest.mark.parametrize(
    ("make", "cpus", "processes", "at_once"),
    [
        (Queue.of_solves, 2, 1, 2),
        (Queue.of_solves, 64, 1, 4),
        (Queue.of_solves, 64, 2, 2),
        (Queue.of_solves, 2, 3, 1),
        (Queue.of_comparisons, 64, 2, 1),
    ],
)
def test_turns_at_once_in_each_process(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, make: MakeQueue, cpus: int, processes: int, at_once: int
) -> None:
    monkeypatch.setattr(queues, "usable_cpus", lambda: cpus)
    solves = make(settings.model_copy(update={"max_queue_seconds": 0.01}), SharedCounts(processes))
    with ExitStack() as turns:
        for _ in range(at_once):
            turns.enter_context(solves.turn(Caller()))
        fails(ErrorCode.QUEUE_TIMEOUT, lambda: solves.turn(Caller()).__enter__())


@pytest.mark.parametrize(
    ("make", "unit", "at_once", "elsewhere"),
    [(Queue.of_solves, Count.ADAPTATIONS, 2, 58), (Queue.of_comparisons, Count.COMPARISONS, 1, 27)],
)
def test_a_tenant_leaves_the_last_places_to_others(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, make: MakeQueue, unit: Count, at_once: int, elsewhere: int
) -> None:
    """Of 68 adaptations, or 32 comparisons, of two processes an eighth."""
    monkeypatch.setattr(queues, "usable_cpus", lambda: 4)
    shared = SharedCounts(2)
    solves = make(settings.model_copy(update={"require_keys": True, "max_queue_seconds": 0.01}), shared)
    with ExitStack() as turns:
        for _ in range(at_once):
            turns.enter_context(solves.turn(Caller("many")))
        for count, code in ((elsewhere - 1, ErrorCode.QUEUE_TIMEOUT), (elsewhere, ErrorCode.OVERLOADED)):
            shared.process = 1
            shared.set(unit, count)
            shared.process = 0
            fails(code, lambda: solves.turn(Caller("many")).__enter__())
        fails(ErrorCode.QUEUE_TIMEOUT, lambda: solves.turn(Caller("few")).__enter__())


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[int, int]]:
    """How many fits there were, and how many at once."""
    lock, fit, counts = Lock(), adaptation.fit, {"all": 0, "now": 0, "most": 0}

    def counted(*arguments: Any) -> Any:
        with lock:
            counts["all"] += 1
            counts["now"] += 1
            counts["most"] = max(counts["most"], counts["now"])
        try:
            return fit(*arguments)
        finally:
            with lock:
                counts["now"] -= 1

    monkeypatch.setattr(adaptation, "fit", counted)
    return lambda: (counts["all"], counts["most"])


@pytest.mark.parametrize("name", [None, "letters"])
def test_removals_at_once_are_made_one_after_another(
    engine: Engine, fits: Callable[[], tuple[int, int]], name: str | None
) -> None:
    """Each solves once: none starts over because another was faster."""
    made = engine.adapt(colour_support(shots=9), NewClassifier(name=name)).classifier
    reference = name or made.id
    with ThreadPoolExecutor(17) as pool:
        list(pool.map(lambda number: engine.change(reference, RemoveExamples([number])), range(1, 18)))
    assert fits() == (18, 1)
    assert engine.classifiers.of().support(reference)[1].numbers == tuple(range(18, 28))


def test_a_solve_has_its_whole_time_however_long_it_waited(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for others is not told that its images cannot be adapted to."""
    monkeypatch.setattr("comln_serve.engine.queues.usable_cpus", lambda: 1)
    engine = make_engine(max_queue_seconds=0.5)
    engine.warm()
    solving = Gate(monkeypatch, adaptation, "fit")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(engine.adapt, colour_support())
        solving.wait()
        fails(ErrorCode.QUEUE_TIMEOUT, lambda: engine.adapt(colour_support()))
        solving.open()
        assert first.result().classifier.labels == ("red", "green", "blue")
    assert engine.images.pending == 0


@pytest.mark.parametrize("extends", [False, True], ids=["adapt", "examples"])
def test_images_of_solves_that_wait_keep_no_others_out(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, extends: bool
) -> None:
    """Once they are embedded, nothing is left to do for them."""
    engine = make_engine(max_images=9, max_pending_images=9)
    known = engine.adapt(colour_support()).classifier
    solving = Gate(monkeypatch, adaptation, "fit")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: engine.add_examples(known.id, MORE) if extends else engine.adapt(MORE))
        try:
            solving.wait()
            assert len(predict(engine, [file for file, _ in MORE], known.id).probabilities) == 9
        finally:
            solving.open()
        assert first.result().classifier.labels == ("red", "green", "blue")
