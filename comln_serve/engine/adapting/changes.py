"""Changes of a classifier that need no images: it is adapted again to its changed support set.

A classifier whose classes are renamed keeps its weights, unless two of them become one.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from comln_serve.bundle.head import HorizonRule
from comln_serve.domain.classifier import Classifier
from comln_serve.domain.reference import new_id
from comln_serve.domain.support import MIN_CLASSES, SupportSet
from comln_serve.domain.words import MOST_NAMED, listed
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.storage import utc_now

_MAX_SHOWN = 100  # characters of a label that no class has


class Change(ABC):
    """A change of a classifier.

    Attributes:
        operation: tells one kind from others in an idempotency key's fingerprint.
        horizon: T, or the rule that sets it, now and whenever examples change; None: as the classifier has it.
    """

    operation: ClassVar[str]
    horizon: float | HorizonRule | None = None

    def options(self) -> Mapping[str, object]:
        """What makes two changes of this kind the same, in JSON values."""
        return vars(self)

    @abstractmethod
    def support(self, reference: str, examples: SupportSet) -> SupportSet:
        """The support set that takes the place of a classifier's.

        Args:
            reference: what the request calls the classifier.

        Raises:
            ServiceError: the change is not possible.
        """

    def keeping_weights(self, stored: Classifier, support: SupportSet) -> Classifier | None:  # noqa: ARG002
        """The classifier with the support set above, if its weights stay; None: it has to be adapted again."""
        return None


@dataclass(frozen=True)
class RemoveExamples(Change):
    """Leave out examples, by their numbers.

    Raises:
        ServiceError: EXAMPLE_NOT_FOUND; CANNOT_ADAPT, none is left.
    """

    numbers: Collection[int]
    operation: ClassVar = "remove"

    def options(self) -> Mapping[str, object]:
        return {"numbers": sorted(self.numbers)}

    def support(self, reference: str, examples: SupportSet) -> SupportSet:
        _check_numbers(reference, examples, self.numbers)
        left = examples.without(self.numbers)
        if not len(left):
            raise ServiceError(
                ErrorCode.CANNOT_ADAPT,
                f"Without these examples classifier {reference!r} would have none left; it needs at least two classes. "
                f"To delete the classifier, DELETE /classifiers/{reference}.",
                received_classes=0,
                least_classes=MIN_CLASSES,
            )
        return left


@dataclass(frozen=True)
class RelabelExamples(Change):
    """Give examples other labels, of its classes or of new ones, by their numbers.

    Raises:
        ServiceError: EXAMPLE_NOT_FOUND; INVALID_REQUEST, no label would change.
    """

    labels: Mapping[int, str]
    operation: ClassVar = "relabel"

    def options(self) -> Mapping[str, object]:
        return {"labels": {str(number): label for number, label in self.labels.items()}}

    def support(self, reference: str, examples: SupportSet) -> SupportSet:
        _check_numbers(reference, examples, self.labels)
        changed = examples.relabelled(self.labels)
        if changed.labels == examples.labels:
            number, label = next(iter(self.labels.items()))
            raise ServiceError(
                ErrorCode.INVALID_REQUEST,
                f"No label would change: all of these examples of classifier {reference!r} have the labels that were "
                f"sent for them already (example {number}: {label!r}). Send labels that they do not have.",
                received=list(self.labels),
            )
        return changed


@dataclass(frozen=True)
class RenameClasses(Change):
    """Give classes other labels, by the label that each has. Classes that get the same label are merged.

    Without a merge, the weights and the report stay, whatever model is served now.

    Raises:
        ServiceError: INVALID_REQUEST, it has no class of such a label, or no label would change.
    """

    labels: Mapping[str, str]
    operation: ClassVar = "labels"

    def support(self, reference: str, examples: SupportSet) -> SupportSet:
        unknown = [label[:_MAX_SHOWN] for label in self.labels.keys() - set(examples.classes)]
        if unknown:
            named = sorted(unknown)[:MOST_NAMED]
            raise ServiceError(
                ErrorCode.INVALID_REQUEST,
                f"Classifier {reference!r} has no class {', '.join(map(repr, named))}. Its classes are "
                f"{listed(list(map(repr, examples.classes)))}. Labels are compared exactly, blanks included.",
                received=named,
                available=list(examples.classes),
            )
        if all(label == new for label, new in self.labels.items()):
            raise ServiceError(
                ErrorCode.INVALID_REQUEST,
                "No label would change. Send the label that a class has and another one, as in "
                '{"labels": {"lemon": "Lemon"}}.',
            )
        return examples.renamed(self.labels)

    def keeping_weights(self, stored: Classifier, support: SupportSet) -> Classifier | None:
        if len(support.classes) < len(stored.labels):
            return None
        new = {label: self.labels.get(label, label) for label in stored.labels}
        return replace(
            stored,
            id=new_id(),
            created_at=utc_now(),
            revision=1,
            labels=tuple(new.values()),
            report=None if stored.report is None else stored.report.renamed(new),
        )


@dataclass(frozen=True)
class AdaptAgain(Change):
    """Adapt again to the same examples: to another horizon, or by the head that the model has now."""

    horizon: float | HorizonRule | None = None
    operation: ClassVar = "again"

    def support(self, reference: str, examples: SupportSet) -> SupportSet:  # noqa: ARG002
        return examples


def _check_numbers(reference: str, examples: SupportSet, numbers: Collection[int]) -> None:
    if absent := sorted(set(numbers).difference(examples.numbers)):
        named = f"example{'s' * (len(absent) > 1)} {listed(list(map(str, absent)))}"
        raise ServiceError(
            ErrorCode.EXAMPLE_NOT_FOUND,
            f"Classifier {reference!r} has no {named}; nothing was changed. "
            f"GET /classifiers/{reference}/examples lists them; a number that was removed is not given again.",
            received=absent,
        )
