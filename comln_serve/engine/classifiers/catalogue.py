"""Finds, promotes, rolls back and deletes stored classifiers by reference."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeVar

from comln_serve.domain.classifier import Classifier, ClassifierRecord
from comln_serve.domain.support import SupportSet
from comln_serve.engine.classifiers.cache import ClassifierCache
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.short_memory import ShortMemory
from comln_serve.storage import Resolved, Store, TenantStore

_Found = TypeVar("_Found")


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

    def __init__(self, store: Store, cache_bytes: int) -> None:
        self._store = store
        self._cache = ClassifierCache(cache_bytes)
        self._references = References(lambda key: store.for_tenant(key[0]).resolve(key[1]))

    def of(self, tenant: str) -> TenantStore:
        """The store of a tenant."""
        return self._store.for_tenant(tenant)

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

    def find(self, reference: str, tenant: str = "") -> Classifier:
        """The classifier that a reference stands for; its `promoted` may be out of date.

        Raises:
            ServiceError: CLASSIFIER_NOT_FOUND.
        """
        resolved = _found(self._references.read((tenant, reference)), reference)
        found = self._cache.get(resolved.id, resolved.revision)
        if found is None or (found.expires_at is not None and self._store.is_past(found.expires_at)):
            found = _found(self.of(tenant).find(reference), reference)
            self._cache.put(found)
        return found

    def describe(self, reference: str, tenant: str = "") -> ClassifierRecord:
        """A classifier's current description, without its weights.

        Raises:
            ServiceError: CLASSIFIER_NOT_FOUND.
        """
        return _found(self.of(tenant).describe(reference), reference)

    def support(self, reference: str, tenant: str = "") -> tuple[ClassifierRecord, SupportSet]:
        """A classifier's current description and its support set.

        Raises:
            ServiceError: CLASSIFIER_NOT_FOUND.
        """
        return _found(self.of(tenant).support(reference), reference)

    def promote(self, reference: str, tenant: str = "") -> ClassifierRecord:
        """Let a classifier's name stand for it.

        Raises:
            ServiceError: CLASSIFIER_NOT_FOUND; INVALID_REQUEST, the classifier has no name.
        """
        with self.changing(tenant) as store:
            return _found(store.promote(reference), reference)

    def roll_back(self, name: str, tenant: str = "") -> ClassifierRecord:
        """Let a name stand for the version that was promoted before.

        Raises:
            ServiceError: CLASSIFIER_NOT_FOUND; NOTHING_TO_ROLL_BACK_TO; INVALID_REQUEST, `name` is
                an id or a version.
        """
        with self.changing(tenant) as store:
            return _found(store.roll_back(name), name)

    def delete(self, reference: str, tenant: str = "") -> None:
        """Delete the classifier that a reference stands for.

        Raises:
            ServiceError: CLASSIFIER_NOT_FOUND.
        """
        with self.changing(tenant) as store:
            deleted = _found(store.delete(reference), reference)
        self._cache.discard(deleted.id)


def _found(result: _Found | None, reference: str) -> _Found:
    if result is None:
        raise ServiceError(
            ErrorCode.CLASSIFIER_NOT_FOUND,
            f"There is no classifier {reference!r}: an id, a name or name@version. GET /classifiers lists them.",
            received=reference,
        )
    return result
