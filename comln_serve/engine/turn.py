"""One request's images on their way through a batcher: its waits, deadlines and outcome."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from comln_serve.engine.cancellation import client_gone
from comln_serve.engine.lane import Images, Lane
from comln_serve.errors import ErrorCode, ServiceError

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from comln_serve.engine.batcher import Batcher


class Turn:
    """One request's images on their way through a batcher. Made by `Batcher.turn`.

    Other attributes belong to the batcher and its lock.

    Attributes:
        count: images announced.
        waits: when its waits so far began and ended, by the batcher's clock.
        decode_share: of the time its batches took, what went into decoding.
    """

    def __init__(self, batcher: "Batcher", count: int, waited_s: float = 0.0) -> None:
        self.count = count
        self._batcher = batcher
        self.images: Images | None = None
        self.taken = 0
        self.refused: tuple[int, ServiceError] | None = None  # the first bad file, and why
        self._decoding_s = self._running_s = 0.0
        self.runs: list[Run] = []  # the batches that hold images of it, oldest first
        self.running_since: float | None = None  # of the oldest of them, the last if there is none
        self.queued_at = 0.0
        self.over = False
        self.when_over: Callable[[], None] = lambda: None
        self.error: Exception | None = None
        self._embeddings: NDArray[np.float32] | None = None
        self._delivered = 0
        # Waiting is counted while nothing is done for this request: before its first image is
        # decoded, and from its last until its first batch.
        self._waited = waited_s
        self._waits_from: float | None = batcher.clock()
        self.waits: list[tuple[float, float]] = []

    def begin(self) -> None:
        """Its first image is being decoded, or another one: it is not waiting, and still wanted.

        Raises:
            ServiceError: CLIENT_GONE or QUEUE_TIMEOUT, it is not worth decoding.
        """
        with self._batcher.lock:
            self.check()
            self._stop_waiting(self._batcher.clock())

    @property
    def decode_share(self) -> float:
        return self._decoding_s / self._running_s if self._running_s else 0.0

    def embed(self, images: Images) -> NDArray[np.float32]:
        """Embeddings (count, d) of all images that were announced, in their order. Once only.

        Raises:
            ServiceError: CLIENT_GONE, QUEUE_TIMEOUT, INFERENCE_TIMEOUT; INTERNAL where embedding
                its batch failed; NOT_READY, the server is stopping; of the first file that cannot
                be decoded, naming its position.
        """
        over = Event()
        self.submit(images, over.set)
        while not over.wait(self.patience()):
            self.check()
        return self.embeddings()

    def submit(self, images: Images, when_over: Callable[[], None]) -> None:
        """Hand all images over, as `embed` does, and wait for nothing.

        Args:
            when_over: called once, by any thread, when there are `embeddings`, or an error instead;
                quick where it is an error.

        Raises:
            ServiceError: CLIENT_GONE, QUEUE_TIMEOUT, NOT_READY; it is never called then.
        """
        if len(images) != self.count:
            raise ValueError(f"{self.count} images were announced, {len(images)} handed over")
        self._batcher.put(self, images, when_over)

    def embeddings(self) -> NDArray[np.float32]:
        """What `embed` returns or raises, once it is over."""
        self.raise_if_over()
        if self._embeddings is None:
            raise RuntimeError("a turn ended with neither embeddings nor an error")
        return self._embeddings

    def check(self) -> None:
        """Stop here if its caller has left or a deadline has passed.

        Raises:
            ServiceError: as `embed`.
        """
        with self._batcher.lock:
            self._batcher.expire(self, self._batcher.clock())
            self.raise_if_over()

    def patience(self) -> float | None:
        """Seconds until `check` should be asked again, None where no deadline runs."""
        limits, now = self._batcher.limits, self._batcher.clock()
        with self._batcher.lock:
            if self.running_since is not None:
                return max(0.0, self.running_since + limits.max_run_s - now)
            if self._waits_from is None:
                return None
            # It may start to run right away, and its running is looked after from here, too.
            return max(0.0, min(limits.max_queue_s - self.waited(now), limits.max_run_s))

    def cancel(self) -> None:
        """Its caller has left: drop what has not been embedded."""
        with self._batcher.lock:
            self._batcher.end(self, client_gone())

    # --- Called by the batcher, which holds the lock ---------------------------------------------

    def raise_if_over(self) -> None:
        if self.error is not None:
            raise self.error

    def wait_from(self, now: float) -> None:
        self._waited = self.waited(now)
        self.queued_at = self._waits_from = now

    def run_begins(self, run: "Run") -> None:
        self.runs.append(run)
        self.running_since = self.runs[0].began
        self._stop_waiting(run.began)

    def run_ends(self, run: "Run") -> None:
        self.runs.remove(run)
        if self.runs:
            self.running_since = self.runs[0].began

    def _stop_waiting(self, now: float) -> None:
        if self._waits_from is not None:
            self.waits.append((self._waits_from, now))
            self._waited, self._waits_from = self.waited(now), None

    def waited(self, now: float) -> float:
        """Seconds of waiting so far."""
        return self._waited + (0.0 if self._waits_from is None else now - self._waits_from)

    def deliver(
        self, start: int, embeddings: NDArray[np.float32], decoding_s: float, running_s: float
    ) -> bool:
        """Embeddings of the images from `start` on; whether they were the last, and it is over."""
        if self.over:
            return False
        self._decoding_s += decoding_s
        self._running_s += running_s
        if len(embeddings) == self.count:
            self._embeddings = embeddings
        else:
            if self._embeddings is None:
                self._embeddings = np.empty((self.count, embeddings.shape[1]), np.float32)
            self._embeddings[start : start + len(embeddings)] = embeddings
        self._delivered += len(embeddings)
        self.over = self._delivered == self.count
        return self.over

    def end(self) -> None:
        """It is over with an error."""
        self.over = True
        try:
            self.when_over()
        except Exception:  # a thread of a lane must not end by it
            logger.exception("telling of an error failed")

    def refuse(self, position: int, error: ServiceError) -> None:
        """A file that cannot be used."""
        if self.refused is None or position < self.refused[0]:
            self.refused = position, error


@dataclass(frozen=True)
class Piece:
    """Images start..stop of a turn, in one batch."""

    turn: Turn
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def images(self) -> Images:
        if self.turn.images is None:
            raise RuntimeError("a turn was queued without images")
        return self.turn.images[self.start : self.stop]


@dataclass(eq=False)
class Run:
    """A batch on its lane."""

    lane: Lane
    began: float
    alone: bool
    pieces: list[Piece] = field(default_factory=list[Piece])
    interrupted: bool = False


def of_image(position: int, error: ServiceError, count: int) -> ServiceError:
    """The error of a file, saying which of the request's files it is."""
    message = f"Image {position + 1} of {count}: {error.message}"
    return ServiceError(error.code, message, image=position, **error.detail)


def waited_too_long(seconds: float) -> ServiceError:
    """The error for images that waited `seconds` for their turn."""
    return ServiceError(
        ErrorCode.QUEUE_TIMEOUT,
        f"The images waited {seconds:g} s without getting their turn; the server has more work "
        "than it can do. Nothing was changed; try again later.",
        allowed_seconds=seconds,
    )
