"""Tells which images are examples of a classifier."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock

import numpy as np
from numpy.typing import NDArray

from comln_serve.domain.classifier import ClassifierRecord
from comln_serve.engine.admission import waited_too_long
from comln_serve.engine.cancellation import Caller, Cancellation
from comln_serve.engine.classifiers.catalogue import Catalogue
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.report import find_among

_MOST = 16  # requests that are compared or wait
_LOOK_S = 0.1
# Of the examples' embeddings that are kept for the next request, which mostly is of the same evaluation.
_KEPT_BYTES = 32 * 2**20


class Comparisons:
    """Compares images with the examples of classifiers, for one request at a time. Thread-safe.

    The embeddings of a classifier's examples are up to 100 MB.
    """

    def __init__(self, catalogue: Catalogue, max_queue_s: float) -> None:
        """A request may wait for its turn for `max_queue_s` seconds."""
        self._catalogue, self._max_queue_s = catalogue, max_queue_s
        self._turn = Lock()
        self._places = BoundedSemaphore(_MOST)
        self._kept: tuple[tuple[str, int], NDArray[np.float32], tuple[int, ...]] | None = None

    def numbers_of(
        self, embeddings: NDArray[np.float32], classifier: ClassifierRecord, caller: Caller
    ) -> tuple[int | None, ...]:
        """(n,) the number of the example that each image is, by the images' embeddings (n, d); None: of none.

        Raises:
            ServiceError: OVERLOADED or QUEUE_TIMEOUT, too many wait, or for too long; CLIENT_GONE;
                CLASSIFIER_NOT_FOUND, it has been deleted meanwhile.
        """
        with self._one_at_a_time(caller.cancellation):
            examples, numbers = self._examples(classifier, embeddings.shape[1], caller.tenant)
            found = find_among(embeddings, examples)
        return tuple(None if position is None else numbers[position] for position in found)

    def _examples(
        self, classifier: ClassifierRecord, width: int, tenant: str
    ) -> tuple[NDArray[np.float32], tuple[int, ...]]:
        """Embeddings (M, d) of the examples' first views, and the examples' numbers (M,)."""
        key = classifier.id, classifier.revision
        if self._kept is not None and self._kept[0] == key:
            return self._kept[1:]
        self._kept = None  # so that never two are in memory
        stored, support = self._catalogue.of(tenant).support(classifier.id)
        examples, numbers = np.ascontiguousarray(support.embeddings[:, :width]), tuple(support.numbers)
        if examples.nbytes <= _KEPT_BYTES:
            self._kept = (stored.id, stored.revision), examples, numbers
        return examples, numbers

    @contextmanager
    def _one_at_a_time(self, cancellation: Cancellation) -> Generator[None, None, None]:
        if not self._places.acquire(blocking=False):
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"{_MOST} requests have their images compared with examples or wait for that, the most there may be. "
                "Try again in a moment, or leave out the field examples.",
                pending=_MOST,
                limit=_MOST,
            )
        try:
            latest = time.monotonic() + self._max_queue_s
            while not self._turn.acquire(timeout=_LOOK_S):
                cancellation.check()
                if time.monotonic() > latest:
                    raise waited_too_long(self._max_queue_s, "The comparison with examples")
            try:
                cancellation.check()
                yield
            finally:
                self._turn.release()
        finally:
            self._places.release()
