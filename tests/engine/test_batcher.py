"""The batcher with a made-up network: which requests share a batch, how long they wait, and how waiting ends."""

import gc
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock, Semaphore
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

from comln_serve.configuration.settings import Settings
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.embedding.batcher import Batcher
from comln_serve.engine.embedding.job import Job
from comln_serve.errors import ErrorCode, ServiceError
from tests.support.waiting import SOON, wait_until

Answer = Future[NDArray[np.float32]]


def image_of(value: int) -> NDArray[np.uint8]:
    return np.full((1, 1, 1), value, dtype=np.uint8)


def embeddings_of(*values: int) -> NDArray[np.float32]:
    return np.array([[value, value + 0.5] for value in values], dtype=np.float32)


class MadeUpNetwork:
    """Embeds an image of value v as (v, v + 0.5). While it is held, each batch waits for `next`."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.alone: list[bool] = []
        self.interrupted: list[list[int]] = []
        self.failing: dict[int, Exception] = {}
        self.began = Semaphore(0)
        self._lock = Lock()
        self._held = False
        self._next = Semaphore(0)

    def embed(self, images: NDArray[np.uint8], cancellation: Cancellation, *, alone: bool) -> NDArray[np.float32]:
        values = images.ravel().tolist()
        with self._lock:
            self.batches.append(values)
            self.alone.append(alone)
        with cancellation.calling(self._next.release):
            if self._held:
                self.began.release()
                assert self._next.acquire(timeout=SOON)
            try:
                cancellation.check()
            except ServiceError:
                self.interrupted.append(values)
                raise RuntimeError("interrupted") from None
        for value in values:
            if value in self.failing:
                raise self.failing[value]
        return embeddings_of(*values)

    def hold(self) -> None:
        """From now on batches wait."""
        self._held = True

    def next(self) -> None:
        """Let a running batch end."""
        self._next.release()

    def allow(self) -> None:
        """Let the batches that run end, and all that follow."""
        self._held = False
        for _ in range(64):
            self._next.release()


class Bench:
    """A batcher over a made-up network, and threads that wait for it as requests do."""

    def __init__(
        self,
        *,
        max_images: int = 4,
        max_delay_s: float = 100.0,
        threads: int = 1,
        gathers: bool = True,
        settings: Settings | None = None,
    ) -> None:
        self.network = MadeUpNetwork()
        self.settings = settings or Settings(max_queue_seconds=1000, max_inference_seconds=1000)
        delayed = self.settings.model_copy(update={"max_batch_delay_ms": 1000 * max_delay_s})
        self.batcher = Batcher(
            self.network, delayed, name="bench", max_images=max_images, at_once=threads, gathers=gathers
        )
        self._requests = ThreadPoolExecutor(64)

    def send(self, *values: int, cancellation: Cancellation | None = None, tenant: str = "") -> Answer:
        """A request with these images, all decoded."""
        return self._requests.submit(self._embed, values, cancellation, tenant)

    def _embed(self, values: tuple[int, ...], cancellation: Cancellation | None, tenant: str) -> NDArray[np.float32]:
        job = Job(len(values), self.settings, tenant=tenant)
        with (cancellation or Cancellation()).calling(job.cancel), self.batcher.expect(job) as put:
            for position, value in enumerate(values):
                put(position, image_of(value)[None])
            return job.wait()[:, 0]

    def queue(self, *values: int, cancellation: Cancellation | None = None, tenant: str = "") -> Answer:
        """A request that cannot run yet; returns when its images wait."""
        before = self.batcher.queued
        future = self.send(*values, cancellation=cancellation, tenant=tenant)
        wait_until(lambda: future.done() or self.batcher.queued == before + len(values))
        return future

    def occupy(self, *values: int) -> Answer:
        """A request whose first batch runs until it is allowed to end."""
        self.network.hold()
        future = self.send(*(values or (255,)))
        assert self.network.began.acquire(timeout=SOON)
        return future

    def close(self) -> None:
        self.network.allow()
        self.batcher.close()
        self._requests.shutdown()


def fails(code: ErrorCode, future: Answer) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        future.result(SOON)
    assert caught.value.code is code
    return caught.value


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def test_a_lone_request_does_not_wait_for_others(bench: Bench) -> None:
    """Though the delay is 100 s."""
    np.testing.assert_array_equal(bench.send(7).result(SOON), embeddings_of(7))
    assert bench.network.batches == [[7]]


def test_requests_that_wait_are_embedded_together(bench: Bench) -> None:
    first = bench.occupy()
    others = [bench.queue(value) for value in (1, 2, 3)]
    bench.network.allow()
    assert first.result(SOON).tolist() == embeddings_of(255).tolist()
    for value, other in zip((1, 2, 3), others, strict=True):
        np.testing.assert_array_equal(other.result(SOON), embeddings_of(value))
    assert bench.network.batches == [[255], [1, 2, 3]]


def test_tenants_take_turns_however_many_requests_they_have(bench: Bench) -> None:
    first = bench.occupy()
    many = [bench.queue(value, tenant="many") for value in range(1, 9)]
    one = bench.queue(100, tenant="one")
    bench.network.allow()
    for request in (first, one, *many):
        request.result(SOON)
    assert bench.network.batches == [[255], [1, 100, 2, 3], [4, 5, 6, 7], [8]]


def test_requests_take_turns_image_by_image(bench: Bench) -> None:
    first = bench.occupy()
    large, small = bench.queue(1, 2, 3, 4, 5), bench.queue(6)
    bench.network.allow()
    first.result(SOON)
    np.testing.assert_array_equal(large.result(SOON), embeddings_of(1, 2, 3, 4, 5))
    np.testing.assert_array_equal(small.result(SOON), embeddings_of(6))
    assert bench.network.batches == [[255], [1, 6, 2, 3], [4, 5]]


def test_a_batch_waits_for_what_has_been_announced(bench: Bench) -> None:
    job = Job(2, bench.settings)
    with bench.batcher.expect(job) as put:
        put(0, image_of(1)[None])
        time.sleep(0.05)
        assert bench.network.batches == []
        put(1, image_of(2)[None])
        np.testing.assert_array_equal(job.wait()[:, 0], embeddings_of(1, 2))
    assert bench.network.batches == [[1, 2]]


def test_what_was_announced_and_given_up_is_not_waited_for(bench: Bench) -> None:
    with bench.batcher.expect(Job(3, bench.settings)):
        waiting = bench.queue(1)
        assert bench.network.batches == []
    waiting.result(SOON)


def test_an_image_that_is_skipped_is_not_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job, delays = Job(3, bench.settings), list[float | None]()
    seconds_to_wait = bench.batcher._seconds_to_wait

    def noted(now: float) -> float | None:
        delays.append(seconds_to_wait(now))
        return delays[-1]

    monkeypatch.setattr(bench.batcher, "_seconds_to_wait", noted)
    with bench.batcher.expect(job) as put:
        put(1, None)
        put(2, image_of(2)[None])
        wait_until(lambda: len(delays) > 0 and bool(delays[-1]))  # the thread waits for the delay
        assert bench.network.batches == []
        put(0, None)
        np.testing.assert_array_equal(job.wait()[:, 0], embeddings_of(2))


def test_a_full_batch_waits_for_nothing(bench: Bench) -> None:
    with bench.batcher.expect(Job(1, bench.settings)):
        bench.send(1, 2, 3, 4).result(SOON)


def test_a_batch_waits_for_the_delay_and_no_longer() -> None:
    bench = Bench(max_delay_s=0.01)
    with bench.batcher.expect(Job(1, bench.settings)):
        bench.send(1).result(SOON)
    bench.close()


def test_images_are_spread_over_the_threads_and_only_a_lone_one_is_alone() -> None:
    bench = Bench(max_images=1, threads=2)
    bench.send(1).result(SOON)
    assert bench.network.alone == [True]
    bench.network.hold()
    future = bench.send(2, 3, 4)
    for _ in range(2):
        assert bench.network.began.acquire(timeout=SOON)
    assert bench.batcher.queued == 1
    bench.network.allow()
    np.testing.assert_array_equal(future.result(SOON), embeddings_of(2, 3, 4))
    assert bench.network.alone[1:3] == [False, False]
    bench.close()


def test_what_waits_is_divided_evenly_among_threads_with_a_core_each() -> None:
    bench = Bench(max_images=4, threads=2, gathers=False)
    running = [bench.occupy(100), bench.occupy(101)]
    waiting = bench.queue(*range(13))
    bench.network.next()
    assert bench.network.began.acquire(timeout=SOON)
    bench.network.allow()
    np.testing.assert_array_equal(waiting.result(SOON), embeddings_of(*range(13)))
    assert [len(batch) for batch in bench.network.batches] == [1, 1, 4, 4, 3, 1, 1]
    for future in running:
        future.result(SOON)
    bench.close()


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyError("a bug"), ErrorCode.INTERNAL), (ServiceError(ErrorCode.NOT_READY, "gone"), ErrorCode.NOT_READY)],
)
def test_a_batch_that_fails_fails_its_own_requests_only(
    bench: Bench, error: Exception, code: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    bench.network.failing[1] = error
    first = bench.occupy()
    together, other = [bench.queue(value) for value in (1, 2, 3, 4)], bench.queue(5)
    bench.network.allow()
    first.result(SOON)
    for future in together:
        fails(code, future)
    assert ("a bug" in caplog.text) == (code is ErrorCode.INTERNAL)
    np.testing.assert_array_equal(other.result(SOON), embeddings_of(5))
    np.testing.assert_array_equal(bench.send(6).result(SOON), embeddings_of(6))


def test_clients_that_leave_are_not_embedded(bench: Bench) -> None:
    first = bench.occupy()
    gone = Cancellation()
    left, stays = bench.queue(1, 2, cancellation=gone), bench.queue(3)
    gone.cancel()
    fails(ErrorCode.CLIENT_GONE, left)
    bench.network.allow()
    first.result(SOON)
    stays.result(SOON)
    assert bench.network.batches == [[255], [3]]
    assert bench.batcher.queued == 0


def test_a_running_batch_is_interrupted_once_nobody_waits_for_it(bench: Bench) -> None:
    first = bench.occupy()
    clients = [Cancellation(), Cancellation()]
    left = [bench.queue(value, cancellation=client) for value, client in enumerate(clients)]
    bench.network.next()
    first.result(SOON)
    assert bench.network.began.acquire(timeout=SOON)
    clients[0].cancel()
    fails(ErrorCode.CLIENT_GONE, left[0])
    assert bench.network.interrupted == []
    clients[1].cancel()
    fails(ErrorCode.CLIENT_GONE, left[1])
    wait_until(lambda: bench.network.interrupted == [[0, 1]])
    bench.network.allow()
    bench.send(5).result(SOON)


def test_waiting_too_long() -> None:
    bench = Bench(settings=Settings(max_queue_seconds=0.05, max_inference_seconds=1000.0))
    first = bench.occupy()
    assert fails(ErrorCode.QUEUE_TIMEOUT, bench.send(1)).detail == {"allowed_seconds": 0.05}
    assert not first.done(), "what runs is not waiting"
    bench.network.allow()
    first.result(SOON)
    assert bench.network.batches == [[255]]
    bench.close()


def test_running_too_long_ends_the_batch_and_not_the_server() -> None:
    bench = Bench(settings=Settings(max_queue_seconds=1000.0, max_inference_seconds=0.05))
    bench.network.hold()
    stuck = [bench.send(1), bench.send(2)]
    for future in stuck:
        assert fails(ErrorCode.INFERENCE_TIMEOUT, future).detail == {"allowed_seconds": 0.05}
    wait_until(lambda: sorted(value for run in bench.network.interrupted for value in run) == [1, 2])
    bench.network.allow()
    np.testing.assert_array_equal(bench.send(3).result(SOON), embeddings_of(3))
    bench.close()


def test_a_thread_that_neither_ends_nor_fails_is_told() -> None:
    """What cannot be interrupted holds its thread for ever."""
    bench = Bench(settings=Settings(max_queue_seconds=1000.0, max_inference_seconds=0.02))
    assert not bench.batcher.stuck

    class Deaf(MadeUpNetwork):
        def embed(self, *_arguments: object, **_options: object) -> NDArray[np.float32]:
            time.sleep(1)
            return embeddings_of(1)

    bench.batcher.network = Deaf()
    future = bench.send(1)
    fails(ErrorCode.INFERENCE_TIMEOUT, future)
    wait_until(lambda: bench.batcher.stuck)
    wait_until(lambda: not bench.batcher.stuck)
    bench.close()


def test_closing_finishes_what_is_expected(bench: Bench) -> None:
    first = bench.occupy()
    waiting = bench.queue(1, 2)
    job = Job(1, bench.settings)
    with bench.batcher.expect(job) as put, ThreadPoolExecutor(1) as closer:
        closing = closer.submit(bench.batcher.close)

        def refused() -> bool:
            try:
                with bench.batcher.expect(Job(1, bench.settings)):
                    return False
            except ServiceError as error:
                return error.code is ErrorCode.NOT_READY

        wait_until(refused)
        bench.network.allow()
        first.result(SOON)
        put(0, image_of(9)[None])
        np.testing.assert_array_equal(job.wait()[:, 0], embeddings_of(9))
        np.testing.assert_array_equal(waiting.result(SOON), embeddings_of(1, 2))
        closing.result(SOON)


@pytest.mark.parametrize(("max_images", "threads"), [(8, 1), (1, 3), (8, 3)])
def test_many_threads_get_their_own_back(max_images: int, threads: int) -> None:
    bench = Bench(max_images=max_images, max_delay_s=0.001, threads=threads)

    def ask(seed: int) -> bool:
        random = np.random.default_rng(seed)
        for _ in range(20):
            values = random.integers(0, 200, random.integers(1, 12)).tolist()
            gone = Cancellation()
            future = bench.send(*values, cancellation=gone)
            if random.random() < 0.2:
                gone.cancel()
                error = future.exception(SOON)
                assert error is None or getattr(error, "code", "") is ErrorCode.CLIENT_GONE
            else:
                np.testing.assert_array_equal(future.result(SOON), embeddings_of(*values))
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(8)))
    assert bench.batcher.queued == 0
    bench.close()


def test_views_of_an_image_are_embedded_each_by_itself(bench: Bench) -> None:
    job = Job(2, bench.settings, views=3)
    with bench.batcher.expect(job) as put:
        put(1, np.stack([image_of(value) for value in (4, 5, 6)]))
        put(0, np.stack([image_of(value) for value in (1, 2, 3)]))
        found = job.wait()
    np.testing.assert_array_equal(found, [embeddings_of(1, 2, 3), embeddings_of(4, 5, 6)])
    assert list(map(len, bench.network.batches)) == [4, 2]


def test_a_thread_that_waits_holds_no_images(bench: Bench) -> None:
    class Image(NDArray[np.uint8] if TYPE_CHECKING else np.ndarray):  # type: ignore[misc]
        """An array that can be asked after."""

    gone: list[weakref.ref[object]] = []
    for value in range(4):
        image = image_of(value)[None].view(Image)
        gone.append(weakref.ref(image))
        job = Job(1, bench.settings)
        with bench.batcher.expect(job) as put:
            put(0, image)
            job.wait()
        del image, put
    wait_until(lambda: gc.collect() >= 0 and all(each() is None for each in gone))


def test_an_embedding_that_is_not_finite_fails_its_request_alone(bench: Bench) -> None:
    embed = bench.network.embed

    def divide(images: NDArray[np.uint8], cancellation: Cancellation, *, alone: bool) -> NDArray[np.float32]:
        found = embed(images, cancellation, alone=alone)
        found[images.ravel() == 0] = np.nan
        return found

    bench.network.embed = divide  # type: ignore[method-assign]
    with pytest.raises(ServiceError, match=r"Image 2 of 2: .* NaN") as caught:
        bench.send(3, 0).result(SOON)
    assert caught.value.code is ErrorCode.INVALID_IMAGE
    assert caught.value.detail == {"image": 1}
    np.testing.assert_array_equal(bench.send(3).result(SOON), embeddings_of(3))
