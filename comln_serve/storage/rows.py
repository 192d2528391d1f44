"""Converts between rows and values. Arrays are stored as little-endian float32, row by row; embeddings
that are rounded to 16 bits (`comln_serve.domain.sixteen_bits`) as int16, and their scales as float32.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Row, Text, cast, func, null, select

from comln_serve.domain.classifier import Classifier, ClassifierRecord, HeldOutInfo
from comln_serve.domain.report import Report
from comln_serve.domain.sixteen_bits import from_int16, to_int16
from comln_serve.domain.support import SupportSet
from comln_serve.storage.tables import classifiers, supports, thumbnails

# Fields without a column of their name, and those with one.
_OTHERS = ("promoted", "thumbnails", "held_out")
_FIELDS = tuple(field.name for field in fields(ClassifierRecord) if field.name not in _OTHERS)

INFO = (*(classifiers.c[field] for field in _FIELDS), classifiers.c.held_out_accuracy, classifiers.c.held_out_judged)
# Without reports, which may be megabytes and which lists do not show.
LISTED = tuple(null().label("report") if column is classifiers.c.report else column for column in INFO)
# "position number" of each thumbnail, separated by commas; null: there is none.
THUMBNAILS = (
    select(func.aggregate_strings(cast(thumbnails.c.position, Text) + " " + cast(thumbnails.c.number, Text), ","))
    .where(thumbnails.c.classifier == classifiers.c.sequence)
    .scalar_subquery()
    .label("thumbnails")
)
NO_THUMBNAILS = null().label("thumbnails")
# Labelled, as both tables have a column `labels`: of the classes, and of the examples.
EXAMPLES = (supports.c.labels.label("example_labels"), supports.c.numbers)
SUPPORT = (*EXAMPLES, supports.c.next_number, supports.c.embeddings, supports.c.scales, supports.c.hashes)


def classifier_values(classifier: Classifier) -> dict[str, Any]:
    """A classifier's values in `classifiers`, without tenant, position and promotion."""
    held_out = classifier.held_out
    return {
        **{field: getattr(classifier, field) for field in _FIELDS},
        "held_out_accuracy": None if held_out is None else held_out.accuracy,
        "held_out_judged": None if held_out is None else held_out.judged,
        "report": None if classifier.report is None else classifier.report.model_dump(mode="json"),
        "weights": _bytes(classifier.W),
    }


def to_record(row: Row[Any]) -> ClassifierRecord:
    """Convert a row of `INFO` or `LISTED`, `promoted`, and `THUMBNAILS` or `NO_THUMBNAILS`."""
    return ClassifierRecord(**_values(row))


def to_classifier(row: Row[Any]) -> Classifier:
    """Convert a row as of `to_record` with `weights`."""
    return Classifier(**_values(row), W=_matrix(row.weights, len(row.labels)))


def support_values(support: SupportSet) -> dict[str, Any]:
    """A support set's values in `supports`, without the classifier."""
    return {
        "labels": support.labels,
        "numbers": support.numbers,
        "next_number": support.next_number,
        **_embeddings_values(support.embeddings),
        "hashes": support.hashes,
    }


def thumbnail_values(support: SupportSet, sequence: int) -> list[dict[str, Any]]:
    """Rows of `thumbnails` of a support set and its classifier."""
    return [
        {"classifier": sequence, "position": position, "number": number, "jpeg": support.thumbnails[number]}
        for position, number in enumerate(support.thumbnails_by_class())
        if number is not None
    ]


def to_support(row: Row[Any], jpegs: Mapping[int, bytes]) -> SupportSet:
    """Convert a row of `SUPPORT`, and the thumbnails by number."""
    labels = tuple(row.example_labels)
    hashes = (None,) * len(labels) if row.hashes is None else tuple(row.hashes)
    return SupportSet(_embeddings(row, len(labels)), hashes, labels, tuple(row.numbers), row.next_number, jpegs)


def _values(row: Row[Any]) -> dict[str, Any]:
    values = {field: getattr(row, field) for field in _FIELDS}
    accuracy = row.held_out_accuracy
    return {
        **values,
        "labels": tuple(values["labels"]),
        "examples": tuple(values["examples"]),
        "promoted": bool(row.promoted),
        "held_out": None if accuracy is None else HeldOutInfo(accuracy=accuracy, judged=row.held_out_judged),
        "report": None if row.report is None else Report.model_validate(row.report),
        "thumbnails": _by_class(row.thumbnails, len(values["labels"])),
    }


def _by_class(thumbnails: str | None, classes: int) -> tuple[int | None, ...]:
    """Convert a value of `THUMBNAILS` to the numbers by class."""
    if thumbnails is None:
        return ()
    pairs = (pair.split() for pair in thumbnails.split(","))
    numbers = {int(position): int(number) for position, number in pairs}
    return tuple(map(numbers.get, range(classes)))


def _embeddings_values(embeddings: NDArray[np.float32]) -> dict[str, bytes | None]:
    packed = to_int16(embeddings)
    if packed is None:
        return {"embeddings": _bytes(embeddings), "scales": None}
    numbers, scales = packed
    return {"embeddings": numbers.astype("<i2").tobytes(), "scales": _bytes(scales)}


def _embeddings(row: Row[Any], examples: int) -> NDArray[np.float32]:
    if row.scales is None:
        return _matrix(row.embeddings, examples)
    numbers = np.frombuffer(row.embeddings, dtype="<i2").reshape(examples, -1)
    return from_int16(numbers, np.frombuffer(row.scales, dtype="<f4"))


def _bytes(matrix: NDArray[np.float32]) -> bytes:
    return matrix.astype("<f4").tobytes()


def _matrix(data: bytes, rows: int) -> NDArray[np.float32]:
    return np.frombuffer(data, dtype="<f4").reshape(rows, -1)
