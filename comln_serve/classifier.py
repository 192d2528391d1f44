"""An adapted classifier: labels and a linear layer over a model's embeddings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from comln_serve.reference import ID_PREFIX

__all__ = ["ID_PREFIX", "Classifier", "ClassifierInfo", "HorizonOrigin", "softmax"]

HorizonOrigin = Literal["given", "learned", "auto"]
"""Where a classifier's horizon comes from: the caller's number, or one of the head's rules."""


@dataclass(frozen=True)
class ClassifierInfo:
    """What is known of a classifier beside its weights.

    Attributes:
        id: unique, assigned by the server. name: chosen by the caller, or None.
        model: name of the bundle; embedder_sha256: of the graph and preprocessing it was fit to.
        labels: (N,) in order of first appearance. examples: (N,) support images of each.
        horizon: T that was used. horizon_rule: what it follows, also when examples change.
        support_loss: mean cross-entropy of the support set at T, weighted as in adaptation.
        support_accuracy: share of the support set the classifier gets right.
        created_at: UTC.
        version: of its name, from 1; None where it has no name.
        promoted: whether its name stood for it when this was read. It alone may change without
            `revision` doing so.
        revision: from 1, one more with every change in place.
        metadata: the caller's own.
        expires_at: UTC, from when on it is gone; None: never.
        report: JSON of a `comln_serve.report.Report`; None where there is none, and in lists.
    """

    id: str
    name: str | None
    model: str
    embedder_sha256: str
    labels: tuple[str, ...]
    examples: tuple[int, ...]
    horizon: float
    support_loss: float
    support_accuracy: float
    created_at: datetime
    version: int | None = None
    promoted: bool = False
    revision: int = 1
    horizon_rule: HorizonOrigin = "learned"
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    expires_at: datetime | None = None
    report: dict[str, object] | None = None


@dataclass(frozen=True, kw_only=True)
class Classifier(ClassifierInfo):
    """The result of one adaptation. Immutable: predicting never changes it.

    Attributes:
        W: (N, d) float32, W(T).
    """

    W: NDArray[np.float32]

    def probabilities(
        self, embeddings: NDArray[np.float32], temperature: float = 1.0
    ) -> NDArray[np.float64]:
        """softmax(q W^T / temperature) (n, N) for embeddings q (n, d)."""
        return softmax(embeddings.astype(np.float64) @ self.W.T.astype(np.float64), temperature)


def softmax(logits: NDArray[np.float64], temperature: float = 1.0) -> NDArray[np.float64]:
    """Row-wise softmax of (n, N), divided by a temperature > 0."""
    shifted = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
    result: NDArray[np.float64] = shifted / shifted.sum(axis=1, keepdims=True)
    return result
