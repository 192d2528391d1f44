"""Classifiers kept in memory, so that predicting does not read their weights from the store."""

import sys
from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock

from comln_serve.classifier import Classifier

# What Python keeps for a classifier beside what its fields hold, roughly.
_OBJECT_BYTES = 2000


class ClassifierCache:
    """The most recently used classifiers by id, within a number of bytes. Safe from many threads.

    A revision of a classifier never changes, so an entry is right for as long as it is current:
    whether it is, and which id a name stands for, is the store's to say, because other servers may
    write to it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._entries: OrderedDict[str, tuple[Classifier, int]] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """What the entries take, by estimate."""
        return self._bytes

    def get(self, classifier_id: str, revision: int = 1) -> Classifier | None:
        """That revision of the classifier, if it is here; it is the most recently used then."""
        with self._lock:
            entry = self._entries.get(classifier_id)
            if entry is None or entry[0].revision != revision:
                return None
            self._entries.move_to_end(classifier_id)
            return entry[0]

    def put(self, classifier: Classifier) -> None:
        """Keep it, in place of those used longest ago; one that could never fit is not kept."""
        size = _size(classifier)
        if size > self._max_bytes:
            return
        with self._lock:
            self._forget(classifier.id)
            self._entries[classifier.id] = classifier, size
            self._bytes += size
            while self._bytes > self._max_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self._bytes -= freed

    def discard(self, classifier_id: str) -> None:
        """Forget it, if it is here."""
        with self._lock:
            self._forget(classifier_id)

    def _forget(self, classifier_id: str) -> None:
        _, freed = self._entries.pop(classifier_id, (None, 0))
        self._bytes -= freed


def _size(classifier: Classifier) -> int:
    fields = {name: value for name, value in vars(classifier).items() if name != "W"}
    return classifier.W.nbytes + _memory(fields) + _OBJECT_BYTES


def _memory(value: object) -> int:
    """Bytes of a JSON value, of which reports and metadata are made."""
    if isinstance(value, int):  # counts: Python has one object for all that are equal and small
        return 0
    size = sys.getsizeof(value)
    if isinstance(value, Mapping):
        return size + sum(_memory(key) + _memory(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return size + sum(map(_memory, value))
    return size
