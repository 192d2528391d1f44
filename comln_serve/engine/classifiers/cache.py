"""Cache of classifiers, so that predicting does not read their weights from the store."""

import sys
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock

from cachetools import LRUCache
from pydantic import BaseModel

from comln_serve.domain.classifier import Classifier

# Estimate of a classifier's memory beside the contents of its fields.
_OBJECT_BYTES = 2000


class ClassifierCache:
    """The most recently used classifiers by id, up to a number of bytes. Thread-safe.

    A revision of a classifier never changes, so entries never become wrong. Only the store knows
    the current revision and the id that a name stands for, as other servers write to it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._lock = Lock()
        self._entries = LRUCache[str, Classifier](max_bytes, _size)

    def get(self, classifier_id: str, revision: int = 1) -> Classifier | None:
        """The revision of a classifier, if cached. Marks it as the most recently used."""
        with self._lock:
            found = self._entries.get(classifier_id)
        return found if found is not None and found.revision == revision else None

    def put(self, classifier: Classifier) -> None:
        """Add a classifier, unless it exceeds the cache; evict those used longest ago."""
        with self._lock, suppress(ValueError):  # it exceeds the cache
            self._entries[classifier.id] = classifier

    def discard(self, classifier_id: str) -> None:
        """Remove a classifier, if cached."""
        with self._lock:
            self._entries.pop(classifier_id, None)


def _size(classifier: Classifier) -> int:
    fields = {name: value for name, value in vars(classifier).items() if name != "W"}
    return classifier.W.nbytes + _memory(fields) + _OBJECT_BYTES


def _memory(value: object) -> int:
    """Memory of a report or a JSON value, such as metadata, in bytes."""
    if isinstance(value, int):  # Python shares one object among equal small integers
        return 0
    size = sys.getsizeof(value)
    if isinstance(value, BaseModel):
        return size + _memory(vars(value))
    if isinstance(value, Mapping):
        return size + sum(_memory(key) + _memory(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return size + sum(map(_memory, value))
    return size
