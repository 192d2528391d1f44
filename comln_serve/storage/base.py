"""What the engine needs of a store of classifiers."""

from typing import Protocol

from comln_serve.classifier import Classifier, ClassifierInfo


class ClassifierStore(Protocol):
    """Durable classifiers. Safe to call from many threads.

    Every method may raise `ServiceError` STORAGE_UNAVAILABLE.
    """

    def add(self, classifier: Classifier) -> None:
        """Store it; once this returns it survives a crash of the process or the machine."""
        ...

    def resolve(self, id_or_name: str) -> str | None:
        """The id of what `find` would find; cheaper, as it reads no weights."""
        ...

    def find(self, id_or_name: str) -> Classifier | None:
        """The classifier of that id; else the newest of that name; else None."""
        ...

    def page(self, *, limit: int, before: int | None) -> tuple[list[ClassifierInfo], int | None]:
        """At most `limit` classifiers, newest first, and where the next page starts.

        Args:
            before: a start from an earlier call; None for the newest.

        Returns:
            The page, and `before` of the next one (None: there is no more).
        """
        ...

    def delete(self, classifier_id: str) -> bool:
        """Remove it; whether it was there."""
        ...

    def count(self) -> int:
        """How many there are. Also the check that the store can be reached."""
        ...

    def close(self) -> None:
        """Release what is held; no call may follow."""
        ...
