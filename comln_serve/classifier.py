"""An adapted classifier: labels and a linear layer over a model's embeddings."""

from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

ID_PREFIX = "clf_"


@dataclass(frozen=True)
class ClassifierInfo:
    """What is known of a classifier beside its weights.

    Attributes:
        id: unique, assigned by the server. name: chosen by the caller, or None.
        model: name of the bundle; embedder_sha256: of the graph and preprocessing it was fit to.
        labels: (N,) in order of first appearance. examples: (N,) support images of each.
        horizon: T that was used.
        support_loss: mean cross-entropy of the support set at T, weighted as in adaptation.
        support_accuracy: share of the support set the classifier gets right.
        created_at: UTC.
        report: JSON of a `comln_serve.report.Report`; None where there is none.
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
    report: dict[str, object] | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
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
