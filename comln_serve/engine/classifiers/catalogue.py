"""Finds, promotes, rolls back and deletes stored classifiers by reference."""

from collections.abc import Generator
from contextlib import contextmanager

from comln_serve.domain.classifier import Classifier
from comln_serve.domain.support import MOST_THUMBNAILS
from comln_serve.engine.classifiers.cache import ClassifierCache
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.short_memory import ShortMemory
from comln_serve.storage import Resolved, Store, TenantStore
from comln_serve.storage.classifiers import not_found


class References(ShortMemory[tuple[str, str], Resolved]):
    """Cache from (tenant, reference) to id and revision. It may miss a change that another server
    made in the last `seconds`.
    """

    seconds = 0.5


class Catalogue:
    """The store, with a cache of the classifiers in use.

    Only the store can resolve a reference, as other servers may change it. The result is cached for
    half a second, or until this server makes a change.
    """

    def __init__(self, store: Store, cache_bytes: int, *, keep_thumbnails: bool = False) -> None:
        self._store, self._keep_thumbnails = store, keep_thumbnails
        self._cache = ClassifierCache(cache_bytes)
        self._references = References(lambda key: store.for_tenant(key[0]).resolve(key[1]))

    def of(self, tenant: str = "") -> TenantStore:
        """The store of a tenant."""
        return self._store.for_tenant(tenant, show_thumbnails=self._keep_thumbnails)

    @contextmanager
    def changing(self, tenant: str) -> Generator[TenantStore, None, None]:
        """The store of a tenant, for writing: clears the tenant's cached references afterwards."""
        try:
            yield self.of(tenant)
        finally:  # also after an error, which may come after a write
            self._references.forget(lambda key: key[0] == tenant)

    def remember(self, classifier: Classifier) -> None:
        """Put a classifier that has just been stored into the cache."""
        self._cache.put(classifier)

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
            self._cache.put(found)
        return found

    def _cached(self, resolved: Resolved) -> Classifier | None:
        found = self._cache.get(resolved.id, resolved.revision)
        expired = found is not None and found.expires_at is not None and self._store.is_past(found.expires_at)
        return None if expired else found

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
        self._cache.discard(deleted.id)
        return deleted.id
