"""Threads that decode image files into backbone inputs, for all models.

Tenants take turns, and the requests of each, image by image: neither a request of hundreds of images nor a tenant with
hundreds of requests delays single images of others for long. A file of a few hundred bytes can hold sixty million
pixels: large images, known by their headers, have their own queue, their own threads and a limit on the memory they
take together.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition, Lock, Thread, current_thread
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from comln_serve.domain.rejected import Rejected
from comln_serve.engine.admission import stopping
from comln_serve.engine.embedding.job import Job
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.imaging import ImageError, ImageFile, Preprocessing, StoppedError, fit_views, open_image
from comln_serve.turns import Turns

logger = logging.getLogger(__name__)

# Pixels of the largest small image, at most 64 MB in memory. JPEGs such as a phone's photos are
# decoded at a reduced size.
SMALL = 4_000_000
# A request with large images is refused if those of its tenant's other requests that wait have more pixels than this
# many images of the largest allowed size, per thread: a few seconds of work.
_MOST_WAITING = 8

File = bytes | ServiceError
"""An image file; or, in a partial upload, the error of one that was refused when it was received."""

Deliver = Callable[[int, NDArray[np.uint8] | None], None]
"""Takes an image's position and its views (V, S, S, 3), or None if it cannot be used."""


@dataclass(eq=False)
class Upload:
    """A request's files, decoded in order. Guarded by the decoders' lock.

    Attributes:
        partial: bad files are left out; the request fails only if all are bad.
        decoding: files taken but not finished, queued large ones included.
        bad: errors of bad files, by position.
    """

    job: Job
    files: Sequence[File]
    policy: Preprocessing
    deliver: Deliver
    partial: bool
    taken: int = 0
    decoding: int = 0
    large: deque[tuple[int, ImageFile]] = field(default_factory=deque[tuple[int, ImageFile]])
    bad: dict[int, ServiceError] = field(default_factory=dict[int, ServiceError])

    @property
    def has_more(self) -> bool:
        return self.taken < len(self.files) and (self.partial or not self.bad) and not self.job.over

    @property
    def rejected(self) -> tuple[Rejected, ...]:
        """The bad files in upload order: all of them, once the job is over."""
        return tuple(Rejected(i, error.code, error.message, error.detail) for i, error in sorted(self.bad.items()))

    def failure(self) -> ServiceError | None:
        """The error of the first bad file in upload order, once no file is being decoded."""
        if not self.bad or self.decoding or (self.partial and len(self.bad) < len(self.files)):
            return None
        first = self.rejected[0]
        message = f"Image {first.index + 1} of {len(self.files)}: {first.message}"
        more = {"rejected": [one.facts() for one in self.rejected]} if self.partial else {}
        return ServiceError(first.code, message, image=first.index, **first.detail, **more)


class Task(NamedTuple):
    """One file of an upload, taken by a thread. `file` is that of a large image, opened already; else None."""

    upload: Upload
    position: int
    file: ImageFile | None


class Decoders:
    """Decodes files and delivers the backbone inputs. Thread-safe."""

    def __init__(self, threads: int, max_pixels: int, formats: Sequence[str], max_run_s: float) -> None:
        """Start the threads.

        Args:
            threads: number of threads that decode images; half as many more decode large ones.
            max_pixels: of one image, and of all large images that are decoded at once.
            formats: the accepted ones of `FORMATS`.
            max_run_s: a thread counts as stuck after twice as many seconds with one image.
        """
        self._max_pixels, self._formats, self._max_run_s = max_pixels, formats, max_run_s
        self._lock = Lock()
        # Those for small and for large images wait apart: a thread that wakes up takes time from embedding.
        self._for_small, self._for_large = Condition(self._lock), Condition(self._lock)
        self._uploads, self._large = Turns[Upload](), Turns[Upload]()
        self._held_pixels = 0  # of large images being decoded
        self._busy_since: dict[Thread, float] = {}
        self._closing = False
        self._small_threads = [self._start(self._next_small) for _ in range(threads)]
        for_large = max(1, threads // 2)
        self._most_waiting_pixels = _MOST_WAITING * for_large * max_pixels
        self._large_threads = [self._start(self._next_large) for _ in range(for_large)]

    def submit(
        self, job: Job, files: Sequence[File], policy: Preprocessing, deliver: Deliver, *, partial: bool = False
    ) -> Upload:
        """Decode the files of a job. The job fails with the error of the first bad file.

        Args:
            deliver: called from any thread with each image; V is the job's.
            partial: deliver None for bad files; the job fails only if all are bad.

        Raises:
            ServiceError: NOT_READY, the server is stopping.
        """
        with self._lock:
            if self._closing:
                raise stopping()
            upload = Upload(job, files, policy, deliver, partial)
            self._uploads.add(job.tenant, upload)
            self._for_small.notify(len(files))
        return upload

    def forget(self, upload: Upload) -> None:
        """Release the files of an upload whose job is over, and the room that its large images take in the queue."""
        with self._lock:
            self._uploads.remove(upload.job.tenant, upload)
            if upload.large:
                self._large.remove(upload.job.tenant, upload)
                upload.large.clear()
                self._for_large.notify_all()
            elif self._closing:
                self._for_large.notify_all()  # they end once no upload is left

    @property
    def stuck(self) -> bool:
        """Whether a thread has died, or all those for small images work on one for too long."""
        late = time.monotonic() - 2 * self._max_run_s
        with self._lock:
            since = [self._busy_since.get(thread, math.inf) for thread in self._small_threads]
        threads = (*self._small_threads, *self._large_threads)
        return max(since) < late or not all(thread.is_alive() for thread in threads)

    def close(self) -> None:
        """Decode everything submitted, then end the threads."""
        with self._lock:
            self._closing = True
            self._for_small.notify_all()
            self._for_large.notify_all()
        for thread in (*self._small_threads, *self._large_threads):
            thread.join()

    def _start(self, next_task: Callable[[], Task | None]) -> Thread:
        # A daemon, so that it does not keep a server alive that failed to start; `close` ends it.
        thread = Thread(target=self._work, args=(next_task,), name="decode", daemon=True)
        thread.start()
        return thread

    def _work(self, next_task: Callable[[], Task | None]) -> None:
        while (task := next_task()) is not None:
            try:
                with task.upload.job.running():
                    error = self._decode(task)
            except Exception as unexpected:  # fails this request only; the thread must go on
                logger.exception("decoding failed")
                task.upload.job.fail(unexpected)
                error = None
            self._finish_task(task, error)
            del task  # frees the pixels before the wait for the next task

    def _next_small(self) -> Task | None:
        """Wait for the next file of the next request. None: closed and nothing is left."""
        with self._lock:
            while True:
                while self._uploads:
                    upload = self._uploads.take()
                    if not upload.has_more:
                        continue
                    position, upload.taken = upload.taken, upload.taken + 1
                    upload.decoding += 1
                    if upload.has_more:  # else it would take a turn from its tenant's other requests
                        self._uploads.add(upload.job.tenant, upload)
                    return self._start_task(Task(upload, position, None))
                if self._closing:
                    self._for_large.notify_all()  # they end once no upload is left
                    return None
                self._for_small.wait()

    def _next_large(self) -> Task | None:
        """Wait for the next large image, and for room for its pixels. None as above."""
        with self._lock:
            while True:
                if self._large:
                    upload = self._large.first
                    position, file = upload.large[0]
                    if not self._held_pixels or self._held_pixels + file.pixels <= self._max_pixels:
                        self._large.take()
                        upload.large.popleft()
                        if upload.large:
                            self._large.add(upload.job.tenant, upload)
                        self._held_pixels += file.pixels
                        return self._start_task(Task(upload, position, file))
                elif self._closing and not self._uploads and not self._busy_since:
                    return None
                self._for_large.wait()

    def _start_task(self, task: Task) -> Task:
        self._busy_since[current_thread()] = time.monotonic()
        return task

    def _decode(self, task: Task) -> ServiceError | None:
        """Decode a file, or queue it if it is large. Returns the error if it is bad."""
        upload, position, job = task.upload, task.position, task.upload.job
        if job.over:
            return None
        data = upload.files[position]
        if isinstance(data, ServiceError):
            return data
        began = time.perf_counter()
        try:
            file = task.file or open_image(
                data, max_pixels=self._max_pixels, enough=upload.policy.enough, formats=self._formats, check=job.check
            )
            if task.file is None and file.pixels > SMALL:
                self._park(upload, position, file)
                return None
            pixels = fit_views(file, upload.policy, job.views)
        except StoppedError:
            return None
        except ImageError as error:
            return ServiceError(ErrorCode(error.kind), error.message, **error.detail)
        job.decoding_s += time.perf_counter() - began
        upload.deliver(position, pixels)
        return None

    def _park(self, upload: Upload, position: int, file: ImageFile) -> None:
        """Queue a large image, or fail the request if too many others wait."""
        with self._lock:
            if upload.job.over:  # perhaps forgotten already
                return
            waiting = (other for other in self._large.members(upload.job.tenant) if other is not upload)
            others = sum(image.pixels for other in waiting for _, image in other.large)
            if others <= self._most_waiting_pixels:
                if not upload.large:
                    self._large.add(upload.job.tenant, upload)
                upload.large.append((position, file))
                upload.decoding += 1
                self._for_large.notify_all()
                return
        upload.job.fail(
            ServiceError(
                ErrorCode.OVERLOADED,
                f"The server is busy: {others} pixels of large images wait to be decoded. Try "
                f"again in a moment, or send images of at most {SMALL} pixels.",
                pending_pixels=others,
                limit_pixels=self._most_waiting_pixels,
            )
        )

    def _finish_task(self, task: Task, error: ServiceError | None) -> None:
        upload = task.upload
        with self._lock:
            del self._busy_since[current_thread()]
            if task.file is not None:
                self._held_pixels -= task.file.pixels
            upload.decoding -= 1
            if error is not None:
                upload.bad[task.position] = error
            failure = upload.failure()
            if task.file is not None or self._closing:
                self._for_large.notify_all()
        if failure is not None:
            upload.job.fail(failure)
        elif error is not None and upload.partial:
            upload.deliver(task.position, None)
