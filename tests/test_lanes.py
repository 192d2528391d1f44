"""Several lanes of one batcher, each with an image of its own, as on the cores of a CPU."""

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

from comln_serve.bundle import load_bundle
from comln_serve.engine.backbone import Backbone
from comln_serve.engine.batcher import BatchLimits
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.lane import ImageLane
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.imaging import prepare_image
from comln_serve.settings import Settings
from tests.conftest import image_bytes
from tests.test_batcher import SOON, Answer, Bench, embeddings_of, fails, images_of, wait_until

if TYPE_CHECKING:
    from comln_serve.engine.turn import Turn

LIMITS = BatchLimits(max_images=1, max_delay_s=0.0, max_queue_s=1000.0, max_run_s=1000.0)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(LIMITS, lanes=2)
    yield bench
    bench.close()


def hold_all(bench: Bench, *values: int) -> Answer:
    """A request with an image on every lane, which run until they are allowed to end."""
    for lane in bench.lanes:
        lane.hold()
    future = bench.send(*values)
    for lane in bench.lanes:
        assert lane.began.acquire(timeout=SOON)
    return future


def running(bench: Bench) -> list[int]:
    """The image that runs on each lane."""
    return [lane.batches[-1][0] for lane in bench.lanes]


def test_the_images_of_a_request_are_spread_over_the_lanes(bench: Bench) -> None:
    future = hold_all(bench, 1, 2, 3, 4, 5)
    assert sorted(running(bench)) == [1, 2]
    assert bench.batcher.queued == 3
    for lane in bench.lanes:
        lane.allow()
    np.testing.assert_array_equal(future.result(SOON), embeddings_of(1, 2, 3, 4, 5))
    assert sorted(value for lane in bench.lanes for (value,) in lane.batches) == [1, 2, 3, 4, 5]


def test_only_what_runs_by_itself_is_alone(bench: Bench) -> None:
    for value in range(3):
        bench.send(value).result(SOON)
    assert [*bench.lanes[0].alone, *bench.lanes[1].alone] == [True] * 3
    for lane in bench.lanes:
        lane.alone.clear()
    hold_all(bench, 1, 2)
    assert not any(alone for lane in bench.lanes for alone in lane.alone)


def test_a_bad_file_is_told_by_its_place_and_the_first_of_them_wins(bench: Bench) -> None:
    """Though the second of two bad files is looked at first."""
    for lane in bench.lanes:
        lane.bad_files = {1, 2}
    future = hold_all(bench, 1, 2, 3, 4)
    slow, quick = sorted(bench.lanes, key=lambda lane: lane.batches[-1][0])
    quick.allow()
    wait_until(lambda: bench.batcher.queued == 0)
    assert not future.done(), "the first may be bad, too"
    slow.allow()
    error = fails(ErrorCode.INVALID_IMAGE, future)
    assert error.message == "Image 1 of 4: [1] is bad."
    assert error.detail == {"image": 0, "seen": [1]}
    assert sorted(value for lane in bench.lanes for (value,) in lane.batches) == [1, 2]
    bench.send(5).result(SOON)


def test_a_bad_file_is_no_other_request_s_business(bench: Bench) -> None:
    for lane in bench.lanes:
        lane.bad_files = {3}
    first = hold_all(bench, 1, 2)
    bad, good = bench.queue(3, 4, 5), bench.queue(6)
    for lane in bench.lanes:
        lane.allow()
    assert fails(ErrorCode.INVALID_IMAGE, bad).detail["image"] == 0
    np.testing.assert_array_equal(first.result(SOON), embeddings_of(1, 2))
    np.testing.assert_array_equal(good.result(SOON), embeddings_of(6))


def test_a_run_that_takes_too_long_does_not_stop_the_other_lane(bench: Bench) -> None:
    for lane in bench.lanes:
        lane.hold()
    stuck = bench.send(1)
    wait_until(lambda: any(lane.batches for lane in bench.lanes))
    late = next(lane for lane in bench.lanes if lane.batches)
    (other,) = (lane for lane in bench.lanes if lane is not late)
    bench.clock.advance(LIMITS.max_run_s / 2)
    fine = bench.send(2)
    wait_until(lambda: bool(other.batches))
    bench.clock.advance(LIMITS.max_run_s / 2)
    with pytest.raises(ServiceError):
        bench.turns[0].check()
    bench.turns[1].check()
    fails(ErrorCode.INFERENCE_TIMEOUT, stuck)
    other.allow()
    np.testing.assert_array_equal(fine.result(SOON), embeddings_of(2))
    late.allow()
    np.testing.assert_array_equal(bench.send(3).result(SOON), embeddings_of(3))


def test_the_time_of_a_batch_is_counted_from_the_oldest_that_still_runs(bench: Bench) -> None:
    future = hold_all(bench, 1, 2, 3)
    (turn,) = bench.turns
    bench.clock.advance(600)
    quick = bench.lanes[0]
    quick.next()  # the third image runs there now
    assert turn.patience() == LIMITS.max_run_s - 600
    slow = bench.lanes[1]
    slow.allow()
    wait_until(lambda: len(turn.runs) == 1)
    assert turn.patience() == LIMITS.max_run_s
    quick.allow()
    future.result(SOON)


def test_handing_over_without_waiting(bench: Bench) -> None:
    over = Event()
    with bench.batcher.turn(2) as turn:
        turn.submit(images_of(1, 2), over.set)
        assert over.wait(SOON)
        np.testing.assert_array_equal(turn.embeddings(), embeddings_of(1, 2))


def test_whoever_does_not_wait_is_told_of_an_error_once(bench: Bench) -> None:
    hold_all(bench, 8, 9)
    gone = Cancellation()
    ends: list[Turn] = []
    with bench.batcher.turn(1, gone) as turn:
        turn.submit(images_of(1), lambda: ends.append(turn))
        gone.cancel()
        assert ends == [turn]
        with pytest.raises(ServiceError) as caught:
            turn.embeddings()
        assert caught.value.code is ErrorCode.CLIENT_GONE
        bench.clock.advance(LIMITS.max_queue_s)
        with pytest.raises(ServiceError):
            turn.check()
    assert ends == [turn]
    with bench.batcher.turn(1, gone) as late, pytest.raises(ServiceError):
        late.submit(images_of(1), lambda: ends.append(late))
    assert ends == [turn]


def test_an_image_is_the_same_on_one_core_and_on_all(settings: Settings) -> None:
    """To the last bit, as an image, a file, and one of many."""
    bundle = load_bundle(settings.models_dir / "tiny")
    backbone = Backbone(bundle, "cpu", 3)
    backbone.warm()
    files = [image_bytes(seed=i) for i in range(7)]
    policy = bundle.manifest.preprocessing
    images = np.stack([prepare_image(file, policy) for file in files])
    together = backbone.embed(images)
    lane = ImageLane(backbone, lambda file, _: prepare_image(file, policy))
    for i, file in enumerate(files):
        for alone in (True, False):
            of_file, decoding = lane.run([file], alone=alone)
            of_pixels, _ = lane.run(images[i : i + 1], alone=alone)
            np.testing.assert_array_equal(of_file, together[i : i + 1])
            np.testing.assert_array_equal(of_pixels, together[i : i + 1])
            assert decoding > 0
    backbone.close()


def test_an_interruption_while_a_file_is_decoded_is_not_lost(settings: Settings) -> None:
    bundle = load_bundle(settings.models_dir / "tiny")
    backbone = Backbone(bundle, "cpu", 1)
    policy = bundle.manifest.preprocessing
    late = [True]

    def prepare(file: bytes, _check: Callable[[], None]) -> NDArray[np.uint8]:
        if late:
            lane.interrupt()
        return prepare_image(file, policy)

    lane = ImageLane(backbone, prepare)
    with pytest.raises(Exception, match="terminate"):
        lane.run([image_bytes()], alone=True)
    late.clear()
    assert lane.run([image_bytes()], alone=True)[0].shape == (1, 8)
    backbone.close()


def test_an_interruption_while_a_file_waits_for_room_ends_the_wait(settings: Settings) -> None:
    backbone = Backbone(load_bundle(settings.models_dir / "tiny"), "cpu", 1)
    waits = Event()

    def prepare(_file: bytes, check: Callable[[], None]) -> NDArray[np.uint8]:
        while True:
            waits.set()
            check()
            time.sleep(0.005)

    lane = ImageLane(backbone, prepare)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lane.run, [image_bytes()], alone=True)
        assert waits.wait(30)
        lane.interrupt()
        with pytest.raises(RuntimeError, match="given up"):
            running.result(30)
    backbone.close()


def test_a_lane_that_waits_holds_no_images(bench: Bench) -> None:
    class Image(NDArray[np.uint8] if TYPE_CHECKING else np.ndarray):  # type: ignore[misc]
        """An array that can be asked after."""

    gone: list[weakref.ref[object]] = []
    for value in range(4):
        images = images_of(value).view(Image)
        gone.append(weakref.ref(images))
        with bench.batcher.turn(1) as turn:
            turn.embed(images)
        del images, turn
    wait_until(lambda: gc.collect() >= 0 and all(each() is None for each in gone))
