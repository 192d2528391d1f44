"""Dynamic batching: images of concurrent requests are embedded together.

A request announces its images (`Batcher.turn`) and hands them over (`Turn.embed`), decoded or,
where the lanes decode, as the files they came in. Each lane has a thread, which forms batches of
what has been handed over, first come, first served, counted in images and not in requests: a large
request is spread over several batches, small ones share one. A batch closes

- when it is full;
- when nothing else has been announced, so that a lone request never waits;
- or when its oldest image has waited for the batching delay.

A request leaves the queue without a batch, before anything is computed, when its caller has left or
it has waited too long. Whoever waits for a batch looks after its own deadlines, so the lanes'
threads have no timers.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition, Event, RLock, Thread

import numpy as np
from numpy.typing import NDArray

from comln_serve.engine.cancellation import Cancellation, client_gone
from comln_serve.engine.lane import Images, Lane
from comln_serve.errors import ErrorCode, ServiceError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchLimits:
    """When a batch closes and what a request may wait for.

    Attributes:
        max_images: images in one batch.
        max_delay_s: seconds the oldest image of a batch waits for more, while more are announced.
        max_queue_s: seconds a request may spend waiting, for a decoder and for a batch together.
        max_run_s: seconds one batch may take, decoding included where a lane does that.
    """

    max_images: int = 64
    max_delay_s: float = 0.002
    max_queue_s: float = 10.0
    max_run_s: float = 30.0


class Batcher:
    """Forms batches and feeds them to its lanes. Safe from many threads."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        limits: BatchLimits,
        *,
        name: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start a thread for each lane.

        Args:
            lanes: each runs a batch of up to `max_images` at a time.
            clock: seconds, never going back.
        """
        self.lanes = lanes
        self.limits = limits
        self.clock = clock
        # Told of every batch that was embedded: how many images, in how many seconds.
        self.on_batch: Callable[[int, float], None] = lambda _images, _seconds: None
        self.lock = RLock()  # guards everything below, and every turn
        self._changed = Condition(self.lock)
        self._queue: deque[Turn] = deque()
        self._queued = 0
        self._announced = 0
        self._busy = 0  # lanes
        self._closing = False
        # Daemons, for servers that give up before they were ever ready; `close` ends them properly.
        self._threads = [
            Thread(target=self._work, args=(lane,), name=f"embed-{name}", daemon=True)
            for lane in lanes
        ]
        for thread in self._threads:
            thread.start()

    @property
    def queued(self) -> int:
        """Images handed over and in no batch yet."""
        return self._queued

    @contextmanager
    def turn(
        self, count: int, cancellation: Cancellation | None = None, *, waited_s: float = 0.0
    ) -> Generator["Turn", None, None]:
        """Announce `count` >= 1 images, which are handed over or given up within the block.

        Args:
            waited_s: seconds the request has already spent waiting elsewhere.

        Raises:
            ServiceError: NOT_READY, the server is stopping.
        """
        turn = Turn(self, count, waited_s)
        with self._changed:
            self._need_open()
            self._announced += count
        try:
            with (cancellation or Cancellation()).calling(turn.cancel):
                yield turn
        finally:
            self._withdraw(turn)

    def close(self) -> None:
        """Take nothing new in, embed what has been handed over, and end the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    # --- Called by turns -------------------------------------------------------------------------

    def put(self, turn: "Turn", images: Images, when_over: Callable[[], None]) -> None:
        """Queue the images of a turn."""
        with self._changed:
            self._need_open()
            turn.raise_if_over()
            turn.when_over = when_over
            self._announced -= turn.count
            turn.images = images
            turn.wait_from(self.clock())
            self._queue.append(turn)
            self._queued += turn.count
            # Otherwise a thread already sleeps towards the right moment.
            if len(self._queue) == 1 or self._seconds_to_wait(self.clock()) == 0:
                self._changed.notify(turn.count)

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
        self._drop(turn)
        if not turn.over:
            turn.error = error
            turn.end()

    def _drop(self, turn: "Turn") -> None:
        if turn in self._queue:
            self._queue.remove(turn)
            self._queued -= turn.count - turn.taken

    def expire(self, turn: "Turn", now: float) -> None:
        """End a turn that is past one of its deadlines. Needs the lock."""
        if turn.over:
            return
        if turn.running_since is not None:
            if now - turn.running_since >= self.limits.max_run_s:
                self.end(turn, self._ran_too_long())
                for run in turn.runs:
                    run.interrupted = True
                    run.lane.interrupt()
        elif turn.waited(now) >= self.limits.max_queue_s:
            self.end(turn, waited_too_long(self.limits.max_queue_s))

    # --- The lanes' threads ----------------------------------------------------------------------

    def _work(self, lane: Lane) -> None:
        while (run := self._next_run(lane)) is not None:
            self._embed(run)
            del run  # with its images, which the wait for the next would keep

    def _next_run(self, lane: Lane) -> "_Run | None":
        """Wait for a batch to close and take it; None: the batcher has closed and is drained."""
        with self._changed:
            while self._queue or not self._closing:
                seconds = self._seconds_to_wait(self.clock())
                if seconds == 0:
                    return self._take(lane, self.clock())
                self._changed.wait(seconds)
            return None

    def _seconds_to_wait(self, now: float) -> float | None:
        """Until the batch closes: 0, it has; None, as long as nothing changes."""
        if not self._queue:
            return None
        if self._queued >= self.limits.max_images or self._announced == 0 or self._closing:
            return 0.0
        return max(0.0, self.limits.max_delay_s - (now - self._queue[0].queued_at))

    def _take(self, lane: Lane, now: float) -> "_Run":
        run = _Run(lane, now, alone=self._busy == 0 and self._queued <= 1)
        room = self.limits.max_images
        while room and self._queue:
            turn = self._queue[0]
            piece = _Piece(turn, turn.taken, min(turn.count, turn.taken + room))
            run.pieces.append(piece)
            room -= len(piece)
            self._queued -= len(piece)
            turn.taken = piece.stop
            turn.run_begins(run)
            if turn.taken == turn.count:
                self._queue.popleft()
        self._busy += 1
        return run

    def _embed(self, run: "_Run") -> None:
        began = time.perf_counter()
        try:
            embeddings, decoding = run.lane.run(
                _joined([piece.images for piece in run.pieces]), alone=run.alone
            )
        except Exception as error:  # whatever it was, it must end these requests and no others
            bad_file = error if isinstance(error, ServiceError) and len(run.pieces) == 1 else None
            if bad_file is None:
                what = "was interrupted, it took too long" if run.interrupted else "failed"
                count = sum(map(len, run.pieces))
                logger.exception("embedding %d images %s", count, what)
            with self._changed:
                self._busy -= 1
                self._fail(run, bad_file)
            return
        seconds = time.perf_counter() - began
        complete: list[Turn] = []
        with self._changed:
            self._busy -= 1
            row = 0
            for piece in run.pieces:
                turn = piece.turn
                turn.run_ends(run)
                if turn.deliver(piece.start, embeddings[row : row + len(piece)], decoding, seconds):
                    complete.append(turn)
                self._conclude(turn)
                row += len(piece)
        for turn in complete:  # without the lock: what follows may take a while
            turn.when_over()
        self.on_batch(len(embeddings), seconds - decoding)

    def _fail(self, run: "_Run", bad_file: ServiceError | None) -> None:
        """What has been embedded of these requests is of no use. Needs the lock.

        Args:
            bad_file: the error, where it is of the only file.
        """
        for piece in run.pieces:
            piece.turn.run_ends(run)
            if bad_file is None:
                self.end(piece.turn, self._ran_too_long() if run.interrupted else _failed())
            else:
                piece.turn.refuse(piece.start, bad_file)
                self._drop(piece.turn)
                self._conclude(piece.turn)

    def _conclude(self, turn: "Turn") -> None:
        """Answer a turn of which a file is bad once all files before that have been looked at, so
        that it is told of the first. Needs the lock."""
        if turn.refused is not None and not turn.runs:
            self.end(turn, of_image(*turn.refused, turn.count))

    def _need_open(self) -> None:
        if self._closing:
            raise ServiceError(
                ErrorCode.NOT_READY, "The server is stopping; try another or try again."
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
        decode_share: of the time its batches took, what went into decoding.
    """

    def __init__(self, batcher: Batcher, count: int, waited_s: float = 0.0) -> None:
        self.count = count
        self._batcher = batcher
        self.images: Images | None = None
        self.taken = 0
        self.refused: tuple[int, ServiceError] | None = None  # the first bad file, and why
        self._decoding_s = self._running_s = 0.0
        self.runs: list[_Run] = []  # the batches that hold images of it, oldest first
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

    def run_begins(self, run: "_Run") -> None:
        self.runs.append(run)
        self.running_since = self.runs[0].began
        self._stop_waiting(run.began)

    def run_ends(self, run: "_Run") -> None:
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
        self.when_over()

    def refuse(self, position: int, error: ServiceError) -> None:
        """A file that cannot be used."""
        if self.refused is None or position < self.refused[0]:
            self.refused = position, error


@dataclass(frozen=True)
class _Piece:
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
class _Run:
    """A batch on its lane."""

    lane: Lane
    began: float
    alone: bool
    pieces: list[_Piece] = field(default_factory=list[_Piece])
    interrupted: bool = False


def _joined(pieces: Sequence[Images]) -> Images:
    """Files come alone: the lanes that decode take one at a time."""
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.asarray(p) for p in pieces])


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


def _failed() -> ServiceError:
    return ServiceError(
        ErrorCode.INTERNAL,
        "Embedding the images failed; the server's log has the details. Requests in other batches "
        "are not affected; try again.",
    )
