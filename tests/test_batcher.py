"""Batches of a made-up backbone: no HTTP, no ONNX, and time that passes only when told to."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from threading import Lock, Semaphore
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

from comln_serve.engine.batcher import Batcher, BatchLimits
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.lane import Images
from comln_serve.errors import ErrorCode, ServiceError

if TYPE_CHECKING:
    from comln_serve.engine.turn import Turn

SOON = 30  # seconds a test waits for what must come
LIMITS = BatchLimits(max_images=4, max_delay_s=100.0, max_queue_s=1000.0, max_run_s=1000.0)


Answer = Future[NDArray[np.float32]]


def images_of(*values: int) -> NDArray[np.uint8]:
    return np.array(values, dtype=np.uint8).reshape(-1, 1, 1, 1)


def embeddings_of(*values: int) -> NDArray[np.float32]:
    return np.array([[value, value + 0.5] for value in values], dtype=np.float32)


class Backbone:
    """Embeds an image of value v as (v, v + 0.5). While it is held, each batch waits for `next`."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.alone: list[bool] = []
        self.bad_files: set[int] = set()
        self.failing: set[int] = set()
        self.began = Semaphore(0)
        self._held = False
        self._next = Semaphore(0)
        self._interrupted = False

    def run(self, images: Images, *, alone: bool) -> tuple[NDArray[np.float32], float]:
        self.alone.append(alone)
        values = np.asarray(images).ravel().tolist()
        self.batches.append(values)
        if self._held:
            self.began.release()
            assert self._next.acquire(timeout=SOON)
        if self._interrupted or self.failing & set(values):
            self._interrupted = False
            raise RuntimeError("made up")
        if self.bad_files & set(values):
            raise ServiceError(ErrorCode.INVALID_IMAGE, f"{values} is bad.", seen=values)
        return embeddings_of(*values), 0.0

    def hold(self) -> None:
        """From now on batches wait."""
        self._held = True

    def next(self) -> None:
        """Let the running batch end, and wait until the next one runs."""
        self._next.release()
        assert self.began.acquire(timeout=SOON)

    def allow(self) -> None:
        """Let the running batch end, and all that follow."""
        self._held = False
        self._next.release()

    def interrupt(self) -> None:
        self._interrupted = True
        self._next.release()


class Clock:
    """Seconds that pass only by `advance`."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


class Bench:
    """A batcher with its made-up surroundings, and threads that wait for it like requests do."""

    def __init__(
        self, limits: BatchLimits, clock: Callable[[], float] | None = None, lanes: int = 1
    ) -> None:
        self.lanes = [Backbone() for _ in range(lanes)]
        self.backbone = self.lanes[0]
        self.clock = Clock()
        self.turns: list[Turn] = []
        self.batcher = Batcher(self.lanes, limits, clock=clock or self.clock)
        self._requests = ThreadPoolExecutor(64)

    def send(self, *values: int, cancellation: Cancellation | None = None) -> Answer:
        """A request whose images need no decoding."""

        def run() -> NDArray[np.float32]:
            with self.batcher.turn(len(values), cancellation) as turn:
                self.turns.append(turn)
                return turn.embed(images_of(*values))

        return self._requests.submit(run)

    def queue(self, *values: int, cancellation: Cancellation | None = None) -> Answer:
        """A request that cannot run yet; returns when it waits in the queue."""
        before = self.batcher.queued
        future = self.send(*values, cancellation=cancellation)
        wait_until(lambda: future.done() or self.batcher.queued == before + len(values))
        return future

    def occupy(self, *values: int) -> Answer:
        """A request whose first batch runs until it is allowed to end."""
        self.backbone.hold()
        future = self.send(*(values or (255,)))
        assert self.backbone.began.acquire(timeout=SOON)
        return future

    def close(self) -> None:
        for lane in self.lanes:
            lane.allow()
        self.batcher.close()
        self._requests.shutdown()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 2 * SOON
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.001)


def fails(code: ErrorCode, future: Answer) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        future.result(SOON)
    assert caught.value.code is code
    return caught.value


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(LIMITS)
    yield bench
    bench.close()


def test_a_lone_request_does_not_wait_for_others(bench: Bench) -> None:
    """The delay is 100 s of a clock that stands still."""
    np.testing.assert_array_equal(bench.send(1).result(SOON), embeddings_of(1))
    np.testing.assert_array_equal(bench.send(2, 3).result(SOON), embeddings_of(2, 3))
    assert bench.backbone.batches == [[1], [2, 3]]


def test_requests_that_wait_are_embedded_together(bench: Bench) -> None:
    first = bench.occupy()
    waiting = [bench.queue(1), bench.queue(2, 3), bench.queue(4)]
    assert bench.batcher.queued == 4
    bench.backbone.allow()
    for future, values in zip([first, *waiting], [(255,), (1,), (2, 3), (4,)], strict=True):
        np.testing.assert_array_equal(future.result(SOON), embeddings_of(*values))
    assert bench.backbone.batches == [[255], [1, 2, 3, 4]]
    assert bench.batcher.queued == 0


def test_batches_are_counted_in_images(bench: Bench) -> None:
    """A request larger than a batch is spread over several, beside others, and put together."""
    bench.occupy()
    waiting = [bench.queue(1), bench.queue(*range(10, 20)), bench.queue(2)]
    bench.backbone.allow()
    for future, values in zip(waiting, [(1,), range(10, 20), (2,)], strict=True):
        np.testing.assert_array_equal(future.result(SOON), embeddings_of(*values))
    assert bench.backbone.batches[1:] == [[1, 10, 11, 12], [13, 14, 15, 16], [17, 18, 19, 2]]


def test_a_batch_waits_for_what_has_been_announced(bench: Bench) -> None:
    with bench.batcher.turn(1) as later:
        early = bench.queue(1)
        assert bench.batcher._seconds_to_wait(bench.clock()) == LIMITS.max_delay_s
        np.testing.assert_array_equal(later.embed(images_of(2)), embeddings_of(2))
    np.testing.assert_array_equal(early.result(SOON), embeddings_of(1))
    assert bench.backbone.batches == [[1, 2]]


def test_a_batch_that_is_full_waits_for_nothing(bench: Bench) -> None:
    with bench.batcher.turn(1):
        assert len(bench.send(1, 2, 3, 4).result(SOON)) == 4


def test_what_was_announced_and_given_up_is_not_waited_for(bench: Bench) -> None:
    """A request whose image cannot be decoded leaves without handing over."""
    with ExitStack() as others:
        others.enter_context(bench.batcher.turn(3))
        early = bench.queue(1)
        assert bench.batcher.queued == 1
    np.testing.assert_array_equal(early.result(SOON), embeddings_of(1))


def test_the_delay_is_counted_from_the_oldest_image(bench: Bench) -> None:
    with bench.batcher.turn(1):
        future = bench.queue(1)
        bench.clock.advance(60)
        second = bench.queue(2)
        assert bench.batcher._seconds_to_wait(bench.clock()) == LIMITS.max_delay_s - 60
        bench.clock.advance(40)
        assert bench.batcher._seconds_to_wait(bench.clock()) == 0
        third = bench.send(3)  # anything that happens lets the thread look at the clock
        for value, request in enumerate((future, second, third), start=1):
            np.testing.assert_array_equal(request.result(SOON), embeddings_of(value))
    assert bench.backbone.batches == [[1, 2, 3]]


def test_the_delay_passes_by_itself() -> None:
    """In real time: nothing else happens, and the batch goes all the same."""
    limits = BatchLimits(max_images=4, max_delay_s=0.01)
    bench = Bench(limits, clock=time.monotonic)
    with bench.batcher.turn(1):
        np.testing.assert_array_equal(bench.queue(1).result(SOON), embeddings_of(1))
    bench.close()


def test_a_batch_that_fails_fails_its_own_requests_only(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.occupy()
    bench.backbone.failing = {2}
    broken = [bench.queue(1, 2), bench.queue(3, 4, 5)]  # the second has images in both batches
    spared = bench.queue(6, 7)
    bench.backbone.allow()
    for future in broken:
        error = fails(ErrorCode.INTERNAL, future)
        assert "made up" not in error.message
        assert error.detail == {}
    np.testing.assert_array_equal(spared.result(SOON), embeddings_of(6, 7))
    np.testing.assert_array_equal(bench.send(8).result(SOON), embeddings_of(8))
    assert "embedding 4 images failed" in caplog.text
    assert "made up" in caplog.text


def test_an_error_of_a_batch_that_is_no_file_s_fails_it_all(bench: Bench) -> None:
    bench.occupy()
    bench.backbone.bad_files = {2}
    together = [bench.queue(1), bench.queue(2)]
    bench.backbone.allow()
    for future in together:
        fails(ErrorCode.INTERNAL, future)
    np.testing.assert_array_equal(bench.send(3).result(SOON), embeddings_of(3))


def test_clients_that_leave_are_not_embedded(bench: Bench) -> None:
    bench.occupy()
    leaving = [Cancellation(), Cancellation(), Cancellation()]
    before = Cancellation()
    before.cancel()
    futures = [bench.queue(i, cancellation=c) for i, c in enumerate(leaving)]
    staying = bench.queue(9)
    gone = bench.queue(8, cancellation=before)
    for cancellation in leaving:
        cancellation.cancel()
    for future in (*futures, gone):
        fails(ErrorCode.CLIENT_GONE, future)
    assert bench.batcher.queued == 1
    bench.backbone.allow()
    staying.result(SOON)
    assert bench.backbone.batches == [[255], [9]]


def test_a_client_that_leaves_between_batches_is_not_embedded_further(bench: Bench) -> None:
    cancellation = Cancellation()
    bench.backbone.hold()
    future = bench.send(*range(10), cancellation=cancellation)
    assert bench.backbone.began.acquire(timeout=SOON)
    cancellation.cancel()
    fails(ErrorCode.CLIENT_GONE, future)
    assert bench.batcher.queued == 0
    bench.backbone.allow()
    bench.send(20).result(SOON)
    assert bench.backbone.batches == [[0, 1, 2, 3], [20]]


def test_waiting_too_long(bench: Bench) -> None:
    """Told by the clock alone; the deadline in real time is tested with the engine."""
    bench.occupy()
    with bench.batcher.turn(2) as turn:
        assert turn.patience() == LIMITS.max_queue_s
        bench.clock.advance(400)
        turn.begin()
        assert turn.patience() is None, "while it is decoded it does not wait"
        bench.clock.advance(5000)
        turn.begin()
        turn.check()
        turn.submit(images_of(1, 2), lambda: None)
        assert turn.patience() == LIMITS.max_queue_s - 400
        bench.clock.advance(599)
        turn.check()
        bench.clock.advance(1)
        with pytest.raises(ServiceError) as caught:
            turn.check()
        assert caught.value.code is ErrorCode.QUEUE_TIMEOUT
        assert caught.value.detail == {"allowed_seconds": 1000.0}
        assert bench.batcher.queued == 0
    with bench.batcher.turn(1) as late:
        bench.clock.advance(1000)
        with pytest.raises(ServiceError) as caught:
            late.begin()
        assert caught.value.code is ErrorCode.QUEUE_TIMEOUT, "not worth decoding"
    assert bench.backbone.batches == [[255]]


def test_running_too_long_ends_the_batch_and_not_the_server(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = bench.occupy()
    waiting = bench.queue(1)
    turn = bench.turns[0]
    bench.clock.advance(LIMITS.max_run_s - 1)
    turn.check()
    assert turn.patience() == 1
    bench.clock.advance(1)
    with pytest.raises(ServiceError):
        turn.check()
    bench.backbone.allow()
    error = fails(ErrorCode.INFERENCE_TIMEOUT, stuck)
    assert error.detail == {"allowed_seconds": 1000.0}
    np.testing.assert_array_equal(waiting.result(SOON), embeddings_of(1))
    assert "took too long" in caplog.text


def test_all_requests_of_a_batch_that_took_too_long_are_told_so(bench: Bench) -> None:
    bench.occupy()
    together = [bench.queue(1), bench.queue(2)]
    bench.backbone.next()
    bench.clock.advance(LIMITS.max_run_s)
    with pytest.raises(ServiceError):
        bench.turns[-1].check()
    for future in together:
        fails(ErrorCode.INFERENCE_TIMEOUT, future)


def test_closing_finishes_what_has_been_handed_over(bench: Bench) -> None:
    first = bench.occupy()
    waiting = [bench.queue(i, i + 1) for i in range(0, 20, 2)]
    with bench.batcher.turn(1) as decoding, ThreadPoolExecutor(1) as closer:
        closing = closer.submit(bench.batcher.close)
        wait_until(lambda: bench.batcher._closing)
        assert not closing.done()
        with pytest.raises(ServiceError) as caught, bench.batcher.turn(1):
            pass
        assert caught.value.code is ErrorCode.NOT_READY
        with pytest.raises(ServiceError) as caught:
            decoding.embed(images_of(1))
        assert caught.value.code is ErrorCode.NOT_READY
        bench.backbone.allow()
        closing.result(SOON)
    first.result(SOON)
    for i, future in enumerate(waiting):
        np.testing.assert_array_equal(future.result(SOON), embeddings_of(2 * i, 2 * i + 1))
    bench.batcher.close()  # once more does no harm


def test_many_threads_get_their_own_back() -> None:
    """Random sizes, some clients leaving, some batches failing; nobody gets another's."""
    bench = Bench(BatchLimits(max_images=8, max_delay_s=0.001))
    bench.backbone.failing = {13}
    lock, answered = Lock(), {"right": 0, "failed": 0, "gone": 0}

    def client(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(40):
            values = rng.integers(0, 255, rng.integers(1, 20)).tolist()
            cancellation = Cancellation()
            if rng.random() < 0.1:
                cancellation.cancel()
            try:
                with bench.batcher.turn(len(values), cancellation) as turn:
                    got = turn.embed(images_of(*values))
                np.testing.assert_array_equal(got, embeddings_of(*values))
                result = "right"
            except ServiceError as error:
                result = {ErrorCode.INTERNAL: "failed", ErrorCode.CLIENT_GONE: "gone"}[error.code]
            with lock:
                answered[result] += 1

    with ThreadPoolExecutor(16) as clients:
        list(clients.map(client, range(16)))
    assert sum(answered.values()) == 16 * 40
    assert all(answered.values())
    assert (bench.batcher.queued, bench.batcher._announced) == (0, 0)
    assert max(map(len, bench.backbone.batches)) <= 8
    assert max(map(len, bench.backbone.batches)) > 1
    bench.close()


def test_announced_and_handed_over_must_agree(bench: Bench) -> None:
    with bench.batcher.turn(2) as turn, pytest.raises(ValueError, match="2 images were announced"):
        turn.embed(images_of(1))
    assert bench.batcher._announced == 0
