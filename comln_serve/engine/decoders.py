"""Decoding off the event loop, as many images at a time as there are CPUs to use."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore

import numpy as np
from numpy.typing import NDArray

from comln_serve.engine.model import Turn
from comln_serve.engine.turn import of_image
from comln_serve.errors import ServiceError
from comln_serve.imaging import Preprocessing, prepare_image


class Decoders:
    """Prepares image files for a backbone, as many at a time as there are slots.

    A single image that finds a slot free is prepared by the thread that brings it, which has
    nothing else to do. Everything else goes through a pool, first come, first served.
    """

    def __init__(self, slots: int, max_pixels: int, formats: Sequence[str]) -> None:
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="decode")
        self._slots = BoundedSemaphore(slots)
        self._max_pixels = max_pixels
        self._formats = formats

    def prepare(
        self, files: Sequence[bytes], policy: Preprocessing, turn: Turn
    ) -> NDArray[np.uint8]:
        """The backbone's input (n, S, S, 3) for n >= 1 image files.

        Raises:
            ServiceError: of the first file that cannot be used, naming its position; or of the
                turn, which has waited too long for a decoder or is not wanted any more.
        """
        here = len(files) == 1 and self._slots.acquire(blocking=False)
        tasks: list[Future[NDArray[np.uint8]]] = []
        if not here:
            tasks = [self._pool.submit(self._in_turn, data, policy, turn) for data in files]
        prepared: list[NDArray[np.uint8]] = []
        try:
            for position, data in enumerate(files):
                try:
                    prepared.append(
                        self._prepare(data, policy, turn)
                        if here
                        else _result(tasks[position], turn)
                    )
                except ServiceError as error:
                    turn.check()  # not the file's fault
                    raise of_image(position, error, len(files)) from error
        finally:
            if here:
                self._slots.release()
            for task in tasks:
                task.cancel()
        return np.stack(prepared)

    def close(self) -> None:
        """Finish what is being decoded and drop what is not."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _in_turn(self, data: bytes, policy: Preprocessing, turn: Turn) -> NDArray[np.uint8]:
        with self._slots:
            return self._prepare(data, policy, turn)

    def _prepare(self, data: bytes, policy: Preprocessing, turn: Turn) -> NDArray[np.uint8]:
        turn.check()
        return prepare_image(
            data,
            policy,
            max_pixels=self._max_pixels,
            formats=self._formats,
            check=turn.check,
            begin=turn.begin,
        )


def _result(task: Future[NDArray[np.uint8]], turn: Turn) -> NDArray[np.uint8]:
    """What the task returns; while no decoder has begun with the turn, it may run out of time."""
    while True:
        try:
            return task.result(turn.patience())
        except TimeoutError:
            turn.check()
