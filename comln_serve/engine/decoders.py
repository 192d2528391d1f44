"""Decoding off the event loop, on as many threads as there are CPUs to use."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from comln_serve.engine.model import Turn
from comln_serve.errors import ServiceError
from comln_serve.imaging import Preprocessing, prepare_image


class Decoders:
    """A pool that prepares image files for a backbone, first come, first served."""

    def __init__(self, threads: int, max_pixels: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self._max_pixels = max_pixels

    def prepare(
        self, files: Sequence[bytes], policy: Preprocessing, turn: Turn
    ) -> NDArray[np.uint8]:
        """The backbone's input (n, S, S, 3) for n >= 1 image files.

        Raises:
            ServiceError: of the first file that cannot be used, naming its position; or of the
                turn, which has waited too long for a decoder or is not wanted any more.
        """
        tasks = [self._pool.submit(self._prepare, data, policy, turn) for data in files]
        prepared: list[NDArray[np.uint8]] = []
        try:
            for position, task in enumerate(tasks):
                try:
                    prepared.append(_result(task, turn))
                except ServiceError as error:
                    turn.check()  # not the file's fault
                    raise ServiceError(
                        error.code,
                        f"Image {position + 1} of {len(files)}: {error.message}",
                        image=position,
                        **error.detail,
                    ) from error
        finally:
            for task in tasks:
                task.cancel()
        return np.stack(prepared)

    def close(self) -> None:
        """Finish what is being decoded and drop what is not."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _prepare(self, data: bytes, policy: Preprocessing, turn: Turn) -> NDArray[np.uint8]:
        turn.begin()
        return prepare_image(data, policy, max_pixels=self._max_pixels)


def _result(task: Future[NDArray[np.uint8]], turn: Turn) -> NDArray[np.uint8]:
    """What the task returns; while no decoder has begun with the turn, it may run out of time."""
    while True:
        try:
            return task.result(turn.patience())
        except TimeoutError:
            turn.check()
