"""Progress, time limits and result of embedding one request's images."""

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from threading import Event, Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comln_serve.configuration.settings import Settings
from comln_serve.engine.admission import waited_too_long
from comln_serve.engine.cancellation import Cancellation, client_gone
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.imaging import StoppedError


class Job:
    """The embeddings (count, views, d) of a request's images, or the error that ends it.

    A coroutine awaits the job, or a thread calls `wait`; either enforces its time limits: `max_queue_seconds` without
    work on any of its images, `max_inference_seconds` to decode one or to embed a batch. Other threads decode and embed
    its images, and stop when it is `over`.

    Attributes:
        count: number of images, at least 1.
        views: number of views of each image, all of which are embedded.
        finite: whether embeddings that hold NaN or infinity end the job.
        tenant: whose request it is; tenants take turns.
        decoding_s, embedding_s: seconds of work, summed over images.
        waited_s: seconds before work on its first image began; None until then.
    """

    def __init__(
        self, count: int, settings: Settings, views: int = 1, *, finite: bool = True, tenant: str = ""
    ) -> None:
        self.count, self.views, self.finite, self.tenant = count, views, finite, tenant
        self.decoding_s = self.embedding_s = 0.0
        self.waited_s: float | None = None
        self._max_queue_s, self._max_run_s = settings.max_queue_seconds, settings.max_inference_seconds
        self._lock = Lock()
        self._waits_from = time.monotonic()
        self._running_since: list[float] = []  # start times, the earliest first
        self._ended = Cancellation()  # raised once the job is over
        self._embeddings: NDArray[np.float32] | None = None
        self._delivered = 0
        self._skipped: list[int] = []
        self._error: Exception | None = None

    @property
    def over(self) -> bool:
        """Whether the job has all its embeddings or an error."""
        return self._error is not None or self._delivered == (self.count - len(self._skipped)) * self.views

    def decoding_share(self) -> float:
        """Share of the work so far that was decoding."""
        return self.decoding_s / ((self.decoding_s + self.embedding_s) or 1.0)

    def wait(self) -> NDArray[np.float32]:
        """Block until the embeddings (count, views, d) are there; skipped images are left out.

        Raises:
            ServiceError: QUEUE_TIMEOUT or INFERENCE_TIMEOUT, a time limit has passed; CLIENT_GONE,
                the job was cancelled; or the error passed to `fail`.
        """
        look = Event()
        with self._ended.calling(look.set):
            while not self.over:
                look.wait(self._enforce_limits())
        return self._result()

    def __await__(self) -> Generator[Any, None, NDArray[np.float32]]:
        """The same without blocking."""
        return self._wait_on_loop().__await__()

    async def _wait_on_loop(self) -> NDArray[np.float32]:
        loop, look = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has been closed, at shutdown: nobody waits any more
                loop.call_soon_threadsafe(look.set)

        with self._ended.calling(wake):
            while not self.over:
                timer = loop.call_later(self._enforce_limits(), look.set)
                try:
                    await look.wait()
                finally:
                    timer.cancel()
                look.clear()
        return self._result()

    def cancel(self) -> None:
        """End the job, as its client has disconnected."""
        self.fail(client_gone())

    def check(self) -> None:
        """Stop the decoder if the job is over.

        Raises:
            StoppedError: the job is over.
        """
        if self.over:
            raise StoppedError

    @contextmanager
    def running(self, stop: Callable[[], None] = lambda: None) -> Generator[None, None, None]:
        """Count the block as work on the job.

        Args:
            stop: called when the job ends meanwhile, at once if it has already.
        """
        with self._lock:
            began = time.monotonic()
            if self.waited_s is None:
                self.waited_s = began - self._waits_from
            self._running_since.append(began)
        try:
            with self._ended.calling(stop):
                yield
        finally:
            with self._lock:
                self._running_since.remove(began)
                self._waits_from = time.monotonic()

    def deliver(self, position: int, view: int, embedding: NDArray[np.float32]) -> None:
        """Store the embedding (d,) of one view of an image; the job fails if it is not finite but has to be."""
        if self.finite and not np.isfinite(embedding).all():
            self.fail(self._not_finite(position))
            return
        with self._lock:
            if self.over:
                return
            if self._embeddings is None:
                self._embeddings = np.empty((self.count, self.views, len(embedding)), np.float32)
            self._embeddings[position, view] = embedding
            self._delivered += 1
        self._tell_if_over()

    def skip(self, position: int) -> None:
        """Go on without one image, none of whose views is delivered. One image at least has to be."""
        with self._lock:
            if not self.over:
                self._skipped.append(position)
        self._tell_if_over()

    def fail(self, error: Exception) -> None:
        """End the job with an error, unless it is over."""
        with self._lock:
            if self.over:
                return
            self._error = error
        self._ended.cancel()

    def _tell_if_over(self) -> None:
        if self.over:
            self._ended.cancel()

    def _result(self) -> NDArray[np.float32]:
        if self._error is not None:
            raise self._error
        if self._embeddings is None:
            raise RuntimeError("a job ended with neither embeddings nor an error")
        return np.delete(self._embeddings, self._skipped, axis=0) if self._skipped else self._embeddings

    def _not_finite(self, position: int) -> ServiceError:
        return ServiceError(
            ErrorCode.INVALID_IMAGE,
            f"Image {position + 1} of {self.count}: the model's embedding of it holds NaN or infinity. Leave it out, "
            "and tell the operator: the model's network cannot cope with it.",
            image=position,
        )

    def _enforce_limits(self) -> float:
        """End the job if a limit has passed. Returns the seconds until one can pass, at least 0."""
        with self._lock:
            now, runs = time.monotonic(), bool(self._running_since)
            if runs:
                left = self._running_since[0] + self._max_run_s - now
            else:  # work may begin before the next look, and then exceed max_run_s
                left = min(self._waits_from + self._max_queue_s - now, self._max_run_s)
            if left > 0 or self.over:
                return max(0.0, left)
        if not runs:
            self.fail(waited_too_long(self._max_queue_s, "The images"))
            return 0.0
        self.fail(
            ServiceError(
                ErrorCode.INFERENCE_TIMEOUT,
                f"Decoding or embedding an image took longer than the {self._max_run_s:g} s allowed. Nothing "
                "was changed; try again, or tell the operator.",
                allowed_seconds=self._max_run_s,
            )
        )
        return 0.0


def embedding_failed() -> ServiceError:
    """The error of a job whose images could not be embedded. The cause has been logged."""
    return ServiceError(ErrorCode.INTERNAL, "Embedding the images failed; the server's log has the details. Try again.")
