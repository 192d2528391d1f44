"""Renames classes of a classifier: the same weights under other labels."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from comln_serve.domain.classifier import Classifier
from comln_serve.domain.reference import new_id
from comln_serve.domain.words import MOST_NAMED, listed
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.storage import utc_now

_MAX_SHOWN = 100  # characters of a label that no class has


def check_renaming(reference: str, classes: Sequence[str], labels: Mapping[str, str]) -> None:
    """Check that a classifier has the classes to rename, and that the label of one of them would change.

    Args:
        classes: (N,) labels of the classifier.
        labels: new labels, by the label that a class has.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    unknown = [label[:_MAX_SHOWN] for label in labels.keys() - set(classes)]
    if unknown:
        named = sorted(unknown)[:MOST_NAMED]
        raise ServiceError(
            ErrorCode.INVALID_REQUEST,
            f"Classifier {reference!r} has no class {', '.join(map(repr, named))}. Its classes are "
            f"{listed(list(map(repr, classes)))}. Labels are compared exactly, blanks included.",
            received=named,
            available=list(classes),
        )
    if all(label == new for label, new in labels.items()):
        raise ServiceError(
            ErrorCode.INVALID_REQUEST,
            "No label would change. Send the label that a class has and another one, as in "
            '{"labels": {"lemon": "Lemon"}}.',
        )


def renamed(stored: Classifier, labels: Mapping[str, str]) -> Classifier:
    """A new classifier with the weights and the report of a stored one, under other labels.

    Args:
        labels: new labels, by the label that a class has; the other classes keep theirs. Afterwards all are different.
    """
    new = {label: labels.get(label, label) for label in stored.labels}
    return replace(
        stored,
        id=new_id(),
        created_at=utc_now(),
        revision=1,
        labels=tuple(new.values()),
        report=None if stored.report is None else stored.report.renamed(new),
    )
