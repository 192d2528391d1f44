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
from dataclasses import dataclass
from threading import Condition, RLock, Thread

import numpy as np

from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.lane import Images, Lane
from comln_serve.engine.turn import Piece, Run, Turn, of_image, waited_too_long
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
    ) -> Generator[Turn, None, None]:
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

    @property
    def alive(self) -> bool:
        """Whether every lane has its thread still."""
        return all(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Take nothing new in, embed what has been handed over, and end the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    # --- Called by turns -------------------------------------------------------------------------

    def put(self, turn: Turn, images: Images, when_over: Callable[[], None]) -> None:
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

    def _withdraw(self, turn: Turn) -> None:
        """At the end of its block: whatever became of it, nothing waits for it any more."""
        with self._changed:
            if turn.images is None:
                self._announced -= turn.count
                if self._queue and self._announced == 0:
                    self._changed.notify()
            self._drop(turn)

    def end(self, turn: Turn, error: Exception) -> None:
        """Answer a turn with an error, unless it has been answered. Needs the lock."""
        self._drop(turn)
        if not turn.over:
            turn.error = error
            turn.end()

    def _drop(self, turn: Turn) -> None:
        if turn in self._queue:
            self._queue.remove(turn)
            self._queued -= turn.count - turn.taken

    def expire(self, turn: Turn, now: float) -> None:
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

    def _next_run(self, lane: Lane) -> Run | None:
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

    def _take(self, lane: Lane, now: float) -> Run:
        run = Run(lane, now, alone=self._busy == 0 and self._queued <= 1)
        room = self.limits.max_images
        while room and self._queue:
            turn = self._queue[0]
            piece = Piece(turn, turn.taken, min(turn.count, turn.taken + room))
            run.pieces.append(piece)
            room -= len(piece)
            self._queued -= len(piece)
            turn.taken = piece.stop
            turn.run_begins(run)
            if turn.taken == turn.count:
                self._queue.popleft()
        self._busy += 1
        return run

    def _embed(self, run: Run) -> None:
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
            self._tell(turn.when_over)
        self._tell(lambda: self.on_batch(len(embeddings), seconds - decoding))

    def _tell(self, listener: Callable[[], None]) -> None:
        """A thread must not end by what others do with its news."""
        try:
            listener()
        except Exception:
            logger.exception("telling of a batch failed")

    def _fail(self, run: Run, bad_file: ServiceError | None) -> None:
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

    def _conclude(self, turn: Turn) -> None:
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


def _joined(pieces: Sequence[Images]) -> Images:
    """Files come alone: the lanes that decode take one at a time."""
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.asarray(p) for p in pieces])


def _failed() -> ServiceError:
    return ServiceError(
        ErrorCode.INTERNAL,
        "Embedding the images failed; the server's log has the details. Requests in other batches "
        "are not affected; try again.",
    )
