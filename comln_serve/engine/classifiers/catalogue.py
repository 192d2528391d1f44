"""Stored classifiers by reference, those in use from memory."""

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from threading import Lock

from cachetools import LRUCache
from pydantic import BaseModel

from comln_serve.domain.classifier import Classifier
from comln_serve.domain.support import MOST_THUMBNAILS
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.short_memory import ShortMemory
from comln_serve.storage import Check, Resolved, Store, TenantStore
from comln_serve.storage.classifiers import allow, not_found

# Estimate of a classifier's memory beside the contents of its fields.
_OBJECT_BYTES = 2000


class References(ShortMemory[tuple[str, str], Resolved]):
    """Cache from (tenant, reference) to id and revision. It may miss a change that another server
    made in the last `seconds`.
    """

    seconds = 0.5


class Catalogue:
    """The store, with a cache of the classifiers used last, up to a number of bytes. Thread-safe.

    A revision of a classifier never changes, so what is cached of it never becomes wrong. But only the store knows the
    current revision and the id that a reference stands for, as other servers may change these: they are cached for half
    a second, or until this server makes a change.
    """

    def __init__(self, store: Store, cache_bytes: int, *, keep_thumbnails: bool = False) -> None:
        self._store, self._keep_thumbnails = store, keep_thumbnails
        self._lock = Lock()
        self._cache = LRUCache[str, Classifier](cache_bytes, memory_of)
        self._references = References(lambda key: store.for_tenant(key[0]).resolve(key[1]))

    def of(self, tenant: str = "") -> TenantStore:
        """The store of a tenant."""
        return self._store.for_tenant(tenant, show_thumbnails=self._keep_thumbnails)

    @contextmanager
    def changing(self, tenant: str, check: Check = allow) -> Generator[TenantStore, None, None]:
        """The store of a tenant, for writing: clears the tenant's cached references afterwards."""
        try:
            yield self._store.for_tenant(tenant, show_thumbnails=self._keep_thumbnails, check=check)
        finally:  # also after an error, which may come after a write
            self._references.forget(lambda key: key[0] == tenant)

    def remember(self, classifier: Classifier) -> None:
        """Cache a classifier, unless it is larger than the cache."""
        with self._lock, suppress(ValueError):  # it is larger
            self._cache[classifier.id] = classifier

    def remembered(self, reference: str, tenant: str = "") -> Classifier | None:
        """What `find` would return, if it is in memory."""
        resolved = self._references.remembered((tenant, reference))
        return None if resolved is None else self._cached(resolved)

    def find(self, reference: str, tenant: str = "") -> Classifier:
        """The classifier that a reference stands for; its `promoted` may be out of date.

        Raises:
            ServiceError: CLASSIFIER_NOT_FOUND.
        """
        resolved = self._references.read((tenant, reference))
        if resolved is None:
            raise not_found(reference)
        found = self._cached(resolved)
        if found is None:
            found = self.of(tenant).find(reference)
            self.remember(found)
        return found

    def _cached(self, resolved: Resolved) -> Classifier | None:
        with self._lock:
            found = self._cache.get(resolved.id)
        if found is None or found.revision != resolved.revision:
            return None
        return None if found.expires_at is not None and self._store.is_past(found.expires_at) else found

    def thumbnail(self, reference: str, number: int, tenant: str = "") -> bytes:
        """The JPEG file that is kept of an example.

        Raises:
            ServiceError: CLASSIFIER_NOT_FOUND, THUMBNAIL_NOT_FOUND.
        """
        if not self._keep_thumbnails:
            raise ServiceError(
                ErrorCode.THUMBNAIL_NOT_FOUND,
                "This server keeps no thumbnails; its operator can allow them (keep_thumbnails).",
                keep_thumbnails=False,
            )
        found = self.of(tenant).thumbnail(reference, number)
        if found is None:
            raise ServiceError(
                ErrorCode.THUMBNAIL_NOT_FOUND,
                f"There is no thumbnail of example {number} of classifier {reference!r}. One is kept of an image of "
                f"each class, up to {MOST_THUMBNAILS}; `classes` of GET /classifiers/{reference} has their numbers.",
                keep_thumbnails=True,
                received=number,
            )
        return found

    def delete(self, reference: str, tenant: str = "") -> str:
        """See `TenantStore.delete`. Returns the classifier's id."""
        with self.changing(tenant) as store:
            deleted = store.delete(reference)
        with self._lock:
            self._cache.pop(deleted.id, None)
        return deleted.id


def memory_of(classifier: Classifier) -> int:
    """Estimated memory of a classifier, in bytes."""
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
