"""A job that a coroutine awaits: its result, its errors and its time limits, as for a thread that waits."""

import asyncio
import gc
import time
import weakref
from contextlib import nullcontext
from threading import Thread
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray

from comln_serve.configuration.settings import Settings
from comln_serve.engine.embedding.job import Job
from comln_serve.errors import ErrorCode, ServiceError
from tests.support.waiting import SOON

ONE, TWO = np.array([1, 2], np.float32), np.array([3, 4], np.float32)


def limits(max_queue_seconds: float, max_inference_seconds: float) -> Settings:
    return Settings(max_queue_seconds=max_queue_seconds, max_inference_seconds=max_inference_seconds)


PATIENT = limits(SOON, SOON)


def result_of(job: Job, *, awaited: bool) -> NDArray[np.float32]:
    async def wait() -> NDArray[np.float32]:
        return await job

    return asyncio.run(wait()) if awaited else job.wait()


@pytest.mark.parametrize("awaited", [True, False])
def test_embeddings_come_from_other_threads(awaited: bool) -> None:
    job = Job(2, PATIENT)
    threads = [Thread(target=job.deliver, args=(1, 0, TWO)), Thread(target=job.deliver, args=(0, 0, ONE))]
    for thread in threads:
        thread.start()
    np.testing.assert_array_equal(result_of(job, awaited=awaited), [[ONE], [TWO]])
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("awaited", [True, False])
def test_a_job_that_is_over_is_not_waited_for(awaited: bool) -> None:
    job = Job(2, PATIENT)
    job.deliver(0, 0, ONE)
    job.skip(1)
    assert job.over
    np.testing.assert_array_equal(result_of(job, awaited=awaited), [[ONE]])


def test_all_views_of_all_images_but_the_skipped_are_waited_for() -> None:
    job = Job(3, PATIENT, views=2)
    job.deliver(2, 1, TWO)
    job.deliver(0, 0, ONE)
    job.skip(1)
    job.deliver(2, 0, ONE)
    assert not job.over
    job.deliver(0, 1, TWO)
    np.testing.assert_array_equal(job.wait(), [[ONE, TWO], [ONE, TWO]])


@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize(
    ("settings", "runs", "code"),
    [(limits(0.05, SOON), False, ErrorCode.QUEUE_TIMEOUT), (limits(SOON, 0.05), True, ErrorCode.INFERENCE_TIMEOUT)],
)
def test_time_limits_end_it(settings: Settings, runs: bool, code: ErrorCode, awaited: bool) -> None:
    job = Job(1, settings)
    with job.running() if runs else nullcontext(), pytest.raises(ServiceError) as caught:
        result_of(job, awaited=awaited)
    assert caught.value.code is code
    assert job.over


def test_a_stuck_image_ends_it_though_others_are_decoded_meanwhile() -> None:
    job = Job(2, limits(SOON, 0.2))
    meanwhile = 0

    def decode_others() -> None:
        nonlocal meanwhile
        while not job.over and meanwhile < 500:
            meanwhile += 1
            with job.running():
                time.sleep(0.01)

    others = Thread(target=decode_others)
    with job.running():
        others.start()
        with pytest.raises(ServiceError) as caught:
            job.wait()
    others.join()
    assert caught.value.code is ErrorCode.INFERENCE_TIMEOUT
    assert meanwhile < 500


def test_work_is_stopped_when_the_job_fails_and_at_once_after_that() -> None:
    job, before, after = Job(1, PATIENT), Mock(), Mock()
    with job.running(before):
        job.fail(ValueError("ends it"))
        with job.running(after):
            before.assert_called_once_with()
            after.assert_called_once_with()


@pytest.mark.parametrize("awaited", [True, False])
def test_the_first_error_ends_it(awaited: bool) -> None:
    job = Job(2, PATIENT)
    failing = Thread(target=lambda: (job.fail(ValueError("first")), job.fail(ValueError("second"))))
    failing.start()
    with pytest.raises(ValueError, match="first"):
        result_of(job, awaited=awaited)
    failing.join()


def test_a_job_that_was_awaited_leaves_no_reference_cycle() -> None:
    """Its embeddings go with it, not when the garbage collector comes."""
    job = Job(1, PATIENT)
    job.deliver(0, 0, ONE)
    result_of(job, awaited=True)
    alive = weakref.ref(job)
    gc.disable()
    try:
        del job
        assert alive() is None
    finally:
        gc.enable()


def test_one_loop_waits_for_many() -> None:
    jobs = [Job(1, PATIENT) for _ in range(50)]

    def embed() -> None:
        for job in reversed(jobs):
            job.deliver(0, 0, ONE)

    async def wait() -> list[NDArray[np.float32]]:
        thread = Thread(target=embed)
        thread.start()
        found = await asyncio.gather(*jobs)
        thread.join()
        return found

    assert len(asyncio.run(wait())) == 50


def test_a_wait_that_is_given_up_leaves_the_job_to_its_threads() -> None:
    """The loop may be closed when the job ends."""
    job = Job(1, PATIENT)

    async def wait() -> None:
        async with asyncio.timeout(0.01):
            await job

    with pytest.raises(TimeoutError):
        asyncio.run(wait())
    job.deliver(0, 0, ONE)
    assert job.over
