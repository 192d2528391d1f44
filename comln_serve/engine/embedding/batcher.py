"""Dynamic batching: embeds images of concurrent requests together.

Decoded images arrive one by one. A thread takes a batch and runs the network on it as soon as

- the batch is full,
- or every announced image has arrived, so that a lone request never waits,
- or the batch's oldest image has waited for the batching delay.

Tenants take turns, and the requests of each, image by image. Images of a request that has ended are dropped unembedded.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Condition, Thread, current_thread
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from comln_serve.configuration.settings import Settings
from comln_serve.engine.admission import stopping
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.embedding.job import Job, embedding_failed
from comln_serve.errors import ServiceError
from comln_serve.turns import Turns

logger = logging.getLogger(__name__)


class Network(Protocol):
    """The network that a batcher runs, from all of its threads."""

    def embed(self, images: NDArray[np.uint8], cancellation: Cancellation, *, alone: bool) -> NDArray[np.float32]:
        """Embeddings (n, d) of images (n, S, S, 3).

        Args:
            cancellation: raised when no request needs the embeddings any more.
            alone: whether no other image is in work or expected.
        """
        ...


@dataclass(frozen=True)
class _Item:
    job: Job
    position: int
    view: int
    image: NDArray[np.uint8]
    arrived: float


class Batcher:
    """Forms batches and embeds them. Thread-safe.

    Attributes:
        max_images: images in one batch.
        at_once: batches that are embedded at the same time.
        queued: images in no batch yet.
        on_batch: called after every batch with its number of images and the seconds it took.
    """

    def __init__(
        self, network: Network, settings: Settings, *, name: str, max_images: int, at_once: int, gathers: bool
    ) -> None:
        """Start the threads.

        Args:
            gathers: wait for large batches, as on a GPU, where they cost hardly more than small ones: while more images
                are announced, the oldest of a batch waits for `max_batch_delay_ms`. Else what waits is divided evenly
                among the threads, which each have a core.
        """
        self.network, self.max_images, self.at_once, self._gathers = network, max_images, at_once, gathers
        self._max_delay_s = 1e-3 * settings.max_batch_delay_ms if gathers else 0.0
        self._max_run_s = settings.max_inference_seconds
        self.on_batch: Callable[[int, float], None] = lambda _images, _seconds: None
        self._changed = Condition()
        self._waiting: dict[Job, deque[_Item]] = {}
        self._turns = Turns[Job]()  # the same jobs
        self.queued = 0
        self._coming = 0
        self._busy_since: dict[Thread, float] = {}
        self._closing = False
        # Daemons, so that they do not keep a server alive that failed to start; `close` ends them.
        self._threads = [Thread(target=self._work, name=f"embed-{name}", daemon=True) for _ in range(at_once)]
        for thread in self._threads:
            thread.start()

    @contextmanager
    def expect(self, job: Job) -> Generator[Callable[[int, NDArray[np.uint8] | None], None], None, None]:
        """Announce the images of a job for the duration of the block. Yields a function `put`.

        Call `put`, from any thread, with each image's position and the pixels of its views (V, S, S, 3);
        None: the job goes on without it.

        Raises:
            ServiceError: NOT_READY, the server is stopping.
        """
        left = job.count

        def put(position: int, views: NDArray[np.uint8] | None) -> None:
            nonlocal left
            with self._changed:
                if left:  # 0 once the block has ended: nobody waits for the image
                    left -= 1
                    self._coming -= 1
                    if views is not None:
                        now = time.monotonic()
                        items = [_Item(job, position, view, image, now) for view, image in enumerate(views)]
                        if job not in self._waiting:
                            self._waiting[job] = deque()
                            self._turns.add(job.tenant, job)
                        self._waiting[job].extend(items)
                        self.queued += len(items)
                        self._changed.notify(len(views))
                    elif not self._coming:
                        self._changed.notify_all()
            if views is None:
                job.skip(position)

        with self._changed:
            if self._closing:
                raise stopping()
            self._coming += job.count
        try:
            yield put
        finally:
            with self._changed:
                given_up, left = left, 0
                self._coming -= given_up
                dropped = self._waiting.pop(job, ())
                self.queued -= len(dropped)
                self._turns.remove(job.tenant, job)
                # Batches need not wait for more images. Waking the threads for nothing would cost time.
                if not self._coming and (given_up or dropped or self._closing):
                    self._changed.notify_all()

    @contextmanager
    def embedding(self, job: Job, images: NDArray[np.uint8]) -> Generator[None, None, None]:
        """Embed images (n, S, S, 3) that are decoded already, for a job of n images with one view, during the block.

        Raises:
            ServiceError: as `expect`.
        """
        with self.expect(job) as put:
            for position, image in enumerate(images):
                put(position, image[None])
            try:
                yield
            finally:
                job.cancel()  # stops the work if the wait was given up

    @property
    def stuck(self) -> bool:
        """Whether a thread has died, or every thread has worked on one batch for too long."""
        late = time.monotonic() - 2 * self._max_run_s  # in one batch
        with self._changed:
            since = [self._busy_since.get(thread, math.inf) for thread in self._threads]
        return max(since) < late or not all(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Refuse new jobs, embed the images of accepted ones, and end the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (found := self._next()) is not None:
            items, alone = found
            try:
                self._embed(items, alone=alone)
            finally:
                with self._changed:
                    del self._busy_since[current_thread()]
                    if self._closing:
                        self._changed.notify_all()
            del items, found  # frees the images before the wait for the next batch

    def _next(self) -> tuple[list[_Item], bool] | None:
        """Wait for a batch; also returns whether it is one image and alone. None: closed and nothing is left."""
        with self._changed:
            while self._waiting or self._coming or not self._closing:
                seconds = self._seconds_to_wait(time.monotonic())
                if seconds != 0:
                    self._changed.wait(seconds)
                elif items := self._take():
                    alone = not (self._busy_since or self._waiting or self._coming)
                    self._busy_since[current_thread()] = time.monotonic()
                    return items, alone and len(items) == 1
            return None

    def _seconds_to_wait(self, now: float) -> float | None:
        """Seconds until the next batch is due; 0: now; None: when something changes."""
        if not self._waiting:
            return None
        if self.queued >= self.max_images or not self._coming:
            return 0.0
        oldest = min(items[0].arrived for items in self._waiting.values())
        return max(0.0, oldest + self._max_delay_s - now)

    def _take(self) -> list[_Item]:
        """Take the images of the next batch. Drops those of jobs that are over."""
        taken: list[_Item] = []
        most = self.max_images if self._gathers else min(self.max_images, math.ceil(self.queued / self.at_once))
        while self._waiting and len(taken) < most:
            job = self._turns.take()
            items = self._waiting[job]
            if job.over:
                self.queued -= len(items)
                del self._waiting[job]
                continue
            taken.append(items.popleft())
            self.queued -= 1
            if items:
                self._turns.add(job.tenant, job)
            else:
                del self._waiting[job]
        return taken

    def _embed(self, items: Sequence[_Item], *, alone: bool) -> None:
        images, jobs = np.stack([item.image for item in items]), {item.job for item in items}
        cancellation = Cancellation()

        def stop_if_unwanted() -> None:
            if all(job.over for job in jobs):
                cancellation.cancel()

        with ExitStack() as running:
            for job in jobs:
                running.enter_context(job.running(stop_if_unwanted))
            began = time.perf_counter()
            try:
                embeddings = self.network.embed(images, cancellation, alone=alone)
            except Exception as error:  # fails these requests only; the thread must go on
                if not isinstance(error, ServiceError):
                    if not all(job.over for job in jobs):
                        logger.exception("embedding %d images failed", len(images))
                    error = embedding_failed()
                for job in jobs:
                    job.fail(error)
                return
            seconds = time.perf_counter() - began
            for item, embedding in zip(items, embeddings, strict=True):
                item.job.embedding_s += seconds / len(images)
                item.job.deliver(item.position, item.view, embedding)
        try:
            self.on_batch(len(images), seconds)
        except Exception:  # a failing callback must not end the thread
            logger.exception("recording a batch's metrics failed")
