"""Dynamic batching: images of concurrent requests are embedded together.

A request announces its images (`Batcher.turn`), decodes them, and hands them over (`Turn.embed`).
One thread forms batches of what has been handed over, first come, first served, counted in images
and not in requests: a large request is spread over several batches, small ones share one. A batch
closes

- when it is full;
- when nothing else has been announced, so that a lone request never waits;
- or when its oldest image has waited for the batching delay.

A request leaves the queue without a batch, before anything is computed, when its caller has left or
it has waited too long. Whoever waits for a batch looks after its own deadlines, so the embedding
thread has no timers.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, Event, RLock, Thread

import numpy as np
from numpy.typing import NDArray

from comln_serve.engine.cancellation import Cancellation, client_gone
from comln_serve.errors import ErrorCode, ServiceError

logger = logging.getLogger(__name__)

Embed = Callable[[NDArray[np.uint8]], NDArray[np.float32]]


@dataclass(frozen=True)
class BatchLimits:
    """When a batch closes and what a request may wait for.

    Attributes:
        max_images: images in one batch.
        max_delay_s: seconds the oldest image of a batch waits for more, while more are announced.
        max_queue_s: seconds a request may spend waiting, for a decoder and for a batch together.
        max_run_s: seconds one batch may take to be embedded.
    """

    max_images: int = 64
    max_delay_s: float = 0.002
    max_queue_s: float = 10.0
    max_run_s: float = 30.0


class Batcher:
    """Forms batches and feeds them to `embed` on a thread of its own. Safe from many threads."""

    def __init__(
        self,
        embed: Embed,
        limits: BatchLimits,
        *,
        name: str = "",
        interrupt: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the embedding thread.

        Args:
            embed: (n, ...) images to (n, d) embeddings, row by row, for n up to `max_images`.
            interrupt: make a call of `embed` that runs too long return or raise soon.
            clock: seconds, never going back.
        """
        self.limits = limits
        self.clock = clock
        self._embed, self._interrupt = embed, interrupt
        # Told of every batch that was embedded: how many images, in how many seconds.
        self.on_batch: Callable[[int, float], None] = lambda _images, _seconds: None
        self.lock = RLock()  # guards everything below, and every turn
        self._changed = Condition(self.lock)
        self._queue: deque[Turn] = deque()
        self._queued = 0
        self._announced = 0
        self._closing = False
        self._interrupted = False
        # A daemon, for servers that give up before they were ever ready; `close` ends it properly.
        self._thread = Thread(target=self._work, name=f"embed-{name}", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Images handed over and in no batch yet."""
        return self._queued

    @contextmanager
    def turn(
        self, count: int, cancellation: Cancellation | None = None
    ) -> Generator["Turn", None, None]:
        """Announce `count` >= 1 images, which are handed over or given up within the block.

        Raises:
            ServiceError: NOT_READY, the server is stopping.
        """
        turn = Turn(self, count)
        with self._changed:
            self._need_open()
            self._announced += count
        try:
            with (cancellation or Cancellation()).calling(turn.cancel):
                yield turn
        finally:
            self._withdraw(turn)

    def close(self) -> None:
        """Take nothing new in, embed what has been handed over, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    # --- Called by turns -------------------------------------------------------------------------

    def put(self, turn: "Turn", images: NDArray[np.uint8]) -> None:
        """Queue the images of a turn."""
        with self._changed:
            self._need_open()
            turn.raise_if_over()
            self._announced -= turn.count
            turn.images = images
            turn.wait_from(self.clock())
            self._queue.append(turn)
            self._queued += turn.count
            # Otherwise the thread already sleeps towards the right moment.
            if len(self._queue) == 1 or self._seconds_to_wait(self.clock()) == 0:
                self._changed.notify()

    def _withdraw(self, turn: "Turn") -> None:
        """At the end of its block: whatever became of it, nothing waits for it any more."""
        with self._changed:
            if turn.images is None:
                self._announced -= turn.count
                if self._queue and self._announced == 0:
                    self._changed.notify()
            self._drop(turn)

    def end(self, turn: "Turn", error: Exception) -> None:
        """Answer a turn with an error, unless it has been answered. Needs the lock."""
        if not turn.over.is_set():
            turn.error = error
            turn.over.set()
        self._drop(turn)

    def _drop(self, turn: "Turn") -> None:
        if turn in self._queue:
            self._queue.remove(turn)
            self._queued -= turn.count - turn.taken

    def expire(self, turn: "Turn", now: float) -> None:
        """End a turn that is past one of its deadlines. Needs the lock."""
        if turn.over.is_set():
            return
        if turn.running_since is not None:
            if now - turn.running_since >= self.limits.max_run_s:
                self.end(turn, self._ran_too_long())
                self._interrupted = True
                self._interrupt()
        elif turn.waited(now) >= self.limits.max_queue_s:
            self.end(turn, self._waited_too_long())

    # --- The embedding thread --------------------------------------------------------------------

    def _work(self) -> None:
        while pieces := self._next_batch():
            self._run(pieces)

    def _next_batch(self) -> list["_Piece"]:
        """Wait for a batch to close and take it; empty: the batcher has closed and is drained."""
        with self._changed:
            while self._queue or not self._closing:
                seconds = self._seconds_to_wait(self.clock())
                if seconds == 0:
                    return self._take(self.clock())
                self._changed.wait(seconds)
            return []

    def _seconds_to_wait(self, now: float) -> float | None:
        """Until the batch closes: 0, it has; None, as long as nothing changes."""
        if not self._queue:
            return None
        if self._queued >= self.limits.max_images or self._announced == 0 or self._closing:
            return 0.0
        return max(0.0, self.limits.max_delay_s - (now - self._queue[0].queued_at))

    def _take(self, now: float) -> list["_Piece"]:
        pieces: list[_Piece] = []
        room = self.limits.max_images
        while room and self._queue:
            turn = self._queue[0]
            piece = _Piece(turn, turn.taken, min(turn.count, turn.taken + room))
            pieces.append(piece)
            room -= len(piece)
            self._queued -= len(piece)
            turn.taken = piece.stop
            turn.run_from(now)
            if turn.taken == turn.count:
                self._queue.popleft()
        self._interrupted = False
        return pieces

    def _run(self, pieces: list["_Piece"]) -> None:
        began = time.perf_counter()
        try:
            images = [piece.images for piece in pieces]
            embeddings = self._embed(images[0] if len(images) == 1 else np.concatenate(images))
        except Exception:  # whatever it was, it must end these requests and no others
            with self._changed:
                late = self._interrupted
                what = "was interrupted, it took too long" if late else "failed"
                logger.exception("embedding %d images %s", sum(map(len, pieces)), what)
                for piece in pieces:
                    self.end(piece.turn, self._ran_too_long() if late else _failed())
            return
        self.on_batch(len(embeddings), time.perf_counter() - began)
        with self._changed:
            row = 0
            for piece in pieces:
                piece.turn.deliver(piece.start, embeddings[row : row + len(piece)])
                row += len(piece)

    def _need_open(self) -> None:
        if self._closing:
            raise ServiceError(
                ErrorCode.NOT_READY, "The server is stopping; try another or try again."
            )

    def _waited_too_long(self) -> ServiceError:
        return ServiceError(
            ErrorCode.QUEUE_TIMEOUT,
            f"The images waited {self.limits.max_queue_s:g} s without getting their turn; the "
            "server has more work than it can do. Nothing was changed; try again later.",
            allowed_seconds=self.limits.max_queue_s,
        )

    def _ran_too_long(self) -> ServiceError:
        return ServiceError(
            ErrorCode.INFERENCE_TIMEOUT,
            f"Embedding the images took longer than the {self.limits.max_run_s:g} s allowed. "
            "Nothing was changed; try again, or tell the operator.",
            allowed_seconds=self.limits.max_run_s,
        )


class Turn:
    """One request's images on their way through a batcher. Made by `Batcher.turn`.

    Other attributes belong to the batcher and its lock.

    Attributes:
        count: images announced.
        waits: when its waits so far began and ended, by the batcher's clock.
    """

    def __init__(self, batcher: Batcher, count: int) -> None:
        self.count = count
        self._batcher = batcher
        self.images: NDArray[np.uint8] | None = None
        self.taken = 0
        self.running_since: float | None = None  # of the batch that holds its latest images
        self.queued_at = 0.0
        self.over = Event()
        self.error: Exception | None = None
        self._embeddings: NDArray[np.float32] | None = None
        self._delivered = 0
        # Waiting is counted while nothing is done for this request: before its first image is
        # decoded, and from its last until its first batch.
        self._waited = 0.0
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

    def embed(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Embeddings (count, d) of all images that were announced, in their order. Once only.

        Raises:
            ServiceError: CLIENT_GONE, QUEUE_TIMEOUT, INFERENCE_TIMEOUT; INTERNAL where embedding
                its batch failed; NOT_READY, the server is stopping.
        """
        if len(images) != self.count:
            raise ValueError(f"{self.count} images were announced, {len(images)} handed over")
        self._batcher.put(self, images)
        while not self.over.wait(self.patience()):
            self.check()
        if self.error is not None:
            raise self.error
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

    def run_from(self, now: float) -> None:
        """A batch begins to run that holds images of it."""
        self.running_since = now
        self._stop_waiting(now)

    def _stop_waiting(self, now: float) -> None:
        if self._waits_from is not None:
            self.waits.append((self._waits_from, now))
            self._waited, self._waits_from = self.waited(now), None

    def waited(self, now: float) -> float:
        """Seconds of waiting so far."""
        return self._waited + (0.0 if self._waits_from is None else now - self._waits_from)

    def deliver(self, start: int, embeddings: NDArray[np.float32]) -> None:
        """Embeddings of the images from `start` on; the turn is over with the last of them."""
        if self.over.is_set():
            return
        if len(embeddings) == self.count:
            self._embeddings = embeddings
        else:
            if self._embeddings is None:
                self._embeddings = np.empty((self.count, embeddings.shape[1]), np.float32)
            self._embeddings[start : start + len(embeddings)] = embeddings
        self._delivered += len(embeddings)
        if self._delivered == self.count:
            self.over.set()


@dataclass(frozen=True)
class _Piece:
    """Images start..stop of a turn, in one batch."""

    turn: Turn
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def images(self) -> NDArray[np.uint8]:
        if self.turn.images is None:
            raise RuntimeError("a turn was queued without images")
        return self.turn.images[self.start : self.stop]


def _failed() -> ServiceError:
    return ServiceError(
        ErrorCode.INTERNAL,
        "Embedding the images failed; the server's log has the details. Requests in other batches "
        "are not affected; try again.",
    )
