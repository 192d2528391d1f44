"""One request's images on their way to their embeddings: progress, deadline, outcome."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from comln_serve.engine.cancellation import client_gone
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.imaging import StoppedError


@dataclass(frozen=True)
class JobLimits:
    """What a request waits for at most.

    Attributes:
        max_queue_s: seconds in which nothing is done for it.
        max_run_s: seconds in which one of its images is decoded, or a batch is embedded.
    """

    max_queue_s: float = 10.0
    max_run_s: float = 30.0


class Run(Protocol):
    """Work under way for one job or several."""

    def leave(self) -> None:
        """One of its jobs is over: stop if it was the last. Called once for each job."""


class Job:
    """The embeddings (count, d) of a request's images, or the error that ends it.

    One thread waits for it and enforces its deadline; others decode and embed its images, and stop
    when it is `over`.

    Attributes:
        count: of images, at least 1.
        decoding_s, embedding_s: seconds of work, summed over images.
        waited_s: seconds before the first of its images was taken up; None until then.
    """

    def __init__(self, count: int, limits: JobLimits) -> None:
        self.count = count
        self.decoding_s = self.embedding_s = 0.0
        self.waited_s: float | None = None
        self._limits = limits
        self._changed = Condition()
        self._waits_from = time.monotonic()
        self._runs: dict[Run | None, list[float]] = {}  # when each began
        self._embeddings: NDArray[np.float32] | None = None
        self._delivered = 0
        self._error: Exception | None = None

    @property
    def over(self) -> bool:
        """Whether it has its embeddings or an error."""
        return self._error is not None or self._delivered == self.count

    def wait(self) -> NDArray[np.float32]:
        """Wait for the embeddings (count, d).

        Raises:
            ServiceError: QUEUE_TIMEOUT or INFERENCE_TIMEOUT, a deadline has passed; CLIENT_GONE, it
                was cancelled; or what it failed with.
        """
        while True:
            with self._changed:
                if self.over:
                    break
                left = self._due() - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                late = self._late()
            self.fail(late)
        if self._error is not None:
            raise self._error
        if self._embeddings is None:
            raise RuntimeError("a job ended with neither embeddings nor an error")
        return self._embeddings

    def cancel(self) -> None:
        """Its client has left."""
        self.fail(client_gone())

    def check(self) -> None:
        """Stop decoding here if nobody waits any more.

        Raises:
            StoppedError: it is over.
        """
        if self.over:
            raise StoppedError

    @contextmanager
    def running(self, run: Run | None = None) -> Generator[None, None, None]:
        """For the duration of the block something is being done for it.

        Args:
            run: told when the job is over before the block is.
        """
        self.begin(run)
        try:
            yield
        finally:
            self.end(run)

    def begin(self, run: Run | None) -> None:
        """Something is being done for it from now on; `leave` is called if it is over already."""
        with self._changed:
            now = time.monotonic()
            if self.waited_s is None:
                self.waited_s = now - self._waits_from
            self._runs.setdefault(run, []).append(now)
            over = self.over
        if over and run is not None:
            run.leave()

    def end(self, run: Run | None) -> None:
        """What `begin` began has ended."""
        with self._changed:
            began = self._runs[run]
            began.pop(0)
            if not began:
                del self._runs[run]
            self._waits_from = time.monotonic()

    def deliver(self, position: int, embedding: NDArray[np.float32]) -> None:
        """The embedding (d,) of one image."""
        with self._changed:
            if self.over:
                return
            if self._embeddings is None:
                self._embeddings = np.empty((self.count, len(embedding)), np.float32)
            self._embeddings[position] = embedding
            self._delivered += 1
            if not self.over:
                return
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """End it with an error, unless it is over."""
        with self._changed:
            if self.over:
                return
            self._error = error
            runs = [run for run in self._runs if run is not None]
            self._changed.notify_all()
        for run in runs:
            run.leave()

    def _due(self) -> float:
        """When to look again: it may be late then."""
        if self._runs:
            oldest = min(began[0] for began in self._runs.values())
            return oldest + self._limits.max_run_s
        # It may be taken up while its thread sleeps, and take too long from then on.
        now = time.monotonic()
        return min(self._waits_from + self._limits.max_queue_s, now + self._limits.max_run_s)

    def _late(self) -> ServiceError:
        allowed = self._limits.max_run_s
        if not self._runs:
            return waited_too_long(self._limits.max_queue_s)
        return ServiceError(
            ErrorCode.INFERENCE_TIMEOUT,
            f"Decoding or embedding an image took longer than the {allowed:g} s allowed. Nothing "
            "was changed; try again, or tell the operator.",
            allowed_seconds=allowed,
        )


def waited_too_long(seconds: float) -> ServiceError:
    """The error for work that waited `seconds` for its turn."""
    return ServiceError(
        ErrorCode.QUEUE_TIMEOUT,
        f"The images waited {seconds:g} s without getting their turn; the server has more work "
        "than it can do. Nothing was changed; try again later.",
        allowed_seconds=seconds,
    )
