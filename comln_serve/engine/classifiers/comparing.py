"""Tells which images are examples of a classifier."""

import numpy as np
from numpy.typing import NDArray

from comln_serve.domain.classifier import ClassifierRecord
from comln_serve.engine.cancellation import Caller
from comln_serve.engine.classifiers.catalogue import Catalogue
from comln_serve.engine.queues import Queue
from comln_serve.report import find_among

# The examples' embeddings are kept for the next request up to this size: it mostly is of the same evaluation.
_KEPT_BYTES = 32 * 2**20


class Comparisons:
    """Compares images with the examples of classifiers, for one request at a time. Thread-safe."""

    def __init__(self, catalogue: Catalogue, queue: Queue) -> None:
        """The queue runs one comparison at a time."""
        self._catalogue, self._queue = catalogue, queue
        self._kept: tuple[tuple[str, int], NDArray[np.float32], tuple[int, ...]] | None = None

    def numbers_of(
        self, embeddings: NDArray[np.float32], classifier: ClassifierRecord, caller: Caller
    ) -> tuple[int | None, ...]:
        """(n,) number of the example that each image is identical to, or None, by the images' embeddings (n, d).

        Raises:
            ServiceError: OVERLOADED or QUEUE_TIMEOUT, too many wait, or for too long; CLIENT_GONE;
                CLASSIFIER_NOT_FOUND, it has been deleted meanwhile.
        """
        with self._queue.turn(caller):
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
