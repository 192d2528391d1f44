"""Classifiers and support sets for tests of the store: six classes with difficult names, made-up weights."""

from datetime import UTC, datetime
from typing import Any

import numpy as np

from comln_serve.domain.classifier import Classifier
from comln_serve.domain.support import SupportSet
from comln_serve.storage import TenantStore

LABELS = ("a", "a ", "\N{CAT FACE}\u0301", "\u05e9\u05dc\u05d5\u05dd", "nul\0", "line\n'\";--")
HASHES = (0, 2**64 - 1, None, 1, 2, 3)


def classifier(id: str, name: str | None = None, *, seed: int = 0, **more: Any) -> Classifier:  # noqa: A002
    rng = np.random.default_rng(seed)
    values: dict[str, Any] = {
        "id": id,
        "name": name,
        "model": "tiny",
        "embedder_sha256": "0" * 64,
        "head_sha256": "1" * 64,
        "labels": LABELS,
        "examples": (1, 1, 1, 1, 1, 1),
        "horizon": 0.1 + seed,
        "support_loss": 1 / 3,
        "support_accuracy": 2 / 3,
        "created_at": datetime(2026, 11, 20, 12, 30, 1, 234567, tzinfo=UTC),
        "W": rng.standard_normal((6, 4)).astype(np.float32),
    }
    return Classifier(**{**values, **more})


def support(seed: int = 0) -> SupportSet:
    rng = np.random.default_rng(seed)
    return SupportSet.of(rng.standard_normal((6, 4)).astype(np.float32), HASHES, LABELS)


def add(store: TenantStore, id_: str, name: str | None = None, **options: Any) -> Classifier:
    """Add a classifier with fields and options of `TenantStore.add`."""
    keywords = {
        option: options.pop(option) for option in ("promote", "key", "limit", "derived_from") if option in options
    }
    return store.add(classifier(id_, name, **options), support(), **{"limit": 1000, **keywords})


def same(first: Classifier, second: Classifier) -> bool:
    """Equal to the last bit."""
    ours, theirs = dict(vars(first)), dict(vars(second))
    W, expected = ours.pop("W"), theirs.pop("W")
    return ours == theirs and W.dtype == expected.dtype and np.array_equal(W, expected)


def ids(store: TenantStore, **filters: Any) -> list[str]:
    return [item.id for item in store.page(limit=100, **filters)[0]]
