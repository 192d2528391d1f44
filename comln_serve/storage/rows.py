"""Converts between rows and values. Arrays are stored as little-endian float32, row by row."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Row, null

from comln_serve.domain.classifier import Classifier, ClassifierInfo
from comln_serve.domain.support import SupportSet
from comln_serve.storage.tables import classifiers, supports

# Fields of `ClassifierInfo` whose columns have the same names.
_FIELDS = (
    "id",
    "name",
    "version",
    "revision",
    "model",
    "embedder_sha256",
    "labels",
    "examples",
    "horizon",
    "horizon_rule",
    "support_loss",
    "support_accuracy",
    "metadata",
    "created_at",
    "expires_at",
    "report",
)

INFO = tuple(classifiers.c[field] for field in _FIELDS)
# Without reports, which may be megabytes and which lists do not show.
LISTED = (*INFO[:-1], null().label("report"))
# Labelled, as both tables have a column `labels`: of the classes, and of the examples.
SUPPORT = (supports.c.labels.label("example_labels"), supports.c.numbers, supports.c.next_number, supports.c.embeddings)


def classifier_values(classifier: Classifier) -> dict[str, Any]:
    """A classifier's values in `classifiers`, without tenant, position and promotion."""
    values = {field: getattr(classifier, field) for field in _FIELDS}
    return {**values, "metadata": dict(classifier.metadata), "weights": _bytes(classifier.W)}


def to_info(row: Row[Any]) -> ClassifierInfo:
    """Convert a row of `INFO` or `LISTED`, and `promoted`."""
    return ClassifierInfo(**_info(row))


def to_classifier(row: Row[Any]) -> Classifier:
    """Convert a row of `INFO`, `promoted` and `weights`."""
    return Classifier(**_info(row), W=_matrix(row.weights, len(row.labels)))


def support_values(support: SupportSet) -> dict[str, Any]:
    """A support set's values in `supports`, without the classifier."""
    return {
        "labels": support.labels,
        "numbers": support.numbers,
        "next_number": support.next_number,
        "embeddings": _bytes(support.embeddings),
    }


def to_support(row: Row[Any]) -> SupportSet:
    """Convert a row of `SUPPORT`."""
    return SupportSet(
        _matrix(row.embeddings, len(row.example_labels)), tuple(row.example_labels), tuple(row.numbers), row.next_number
    )


def _info(row: Row[Any]) -> dict[str, Any]:
    values = {field: getattr(row, field) for field in _FIELDS}
    return {
        **values,
        "labels": tuple(values["labels"]),
        "examples": tuple(values["examples"]),
        "promoted": bool(row.promoted),
    }


def _bytes(matrix: NDArray[np.float32]) -> bytes:
    return matrix.astype("<f4").tobytes()


def _matrix(data: bytes, rows: int) -> NDArray[np.float32]:
    return np.frombuffer(data, dtype="<f4").reshape(rows, -1)
