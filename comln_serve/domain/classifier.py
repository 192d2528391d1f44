"""An adapted classifier: labels and a linear layer over a model's embeddings."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from comln_serve.domain.report import Report

HorizonOrigin = Literal["given", "learned", "auto"]
"""How a classifier's horizon was set: by the caller, or by one of the head's rules."""


class ClassInfo(BaseModel):
    """A class, and its number of support images."""

    label: str
    examples: int
    thumbnail: int | None = Field(
        description="Number of the example that the server keeps a thumbnail of, "
        "GET /classifiers/{ref}/examples/{number}/thumbnail; null: of none."
    )


class HeldOutInfo(BaseModel):
    """The accuracy on held-out support images, without the rest of the report."""

    accuracy: float = Field(description="Share of the images that were classified correctly.")
    judged: int = Field(description="Support images that were left out and classified.")


@dataclass(frozen=True)
class ClassifierRecord:
    """A classifier without its weights.

    Attributes:
        id: unique, assigned by the server.
        name: chosen by the caller, or None.
        model: name of the bundle.
        embedder_sha256: hash of the graph and preprocessing that embedded the support set.
        head_sha256: hash of the head that was adapted; None: the release that stored the classifier kept none.
        labels: (N,) in order of first appearance.
        examples: (N,) number of support images of each label.
        horizon: the T used.
        horizon_rule: how T is set, also when examples change.
        support_loss: mean cross-entropy of the support set at T, weighted as in adaptation.
        support_accuracy: share of the support set that is classified correctly.
        created_at: UTC.
        version: number of this version of the name, from 1; None without a name.
        promoted: whether the name stood for this version when it was read. The only field that can
            change without a new `revision`.
        revision: starts at 1; each change in place adds 1.
        metadata: the caller's notes.
        expires_at: UTC; None: never.
        held_out: the accuracy in the report; None: there is none.
        report: None for classifiers made before reports existed, and in lists.
        thumbnails: (N,) number of the example of each class that a thumbnail is kept of; empty if
            there are none at all.
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
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    expires_at: datetime | None = None
    held_out: HeldOutInfo | None = None
    report: Report | None = None
    thumbnails: tuple[int | None, ...] = ()
    head_sha256: str | None = None

    @property
    def classes(self) -> list[ClassInfo]:
        """(N,) in the order of `labels`."""
        thumbnails = self.thumbnails or (None,) * len(self.labels)
        return [
            ClassInfo(label=label, examples=examples, thumbnail=thumbnail)
            for label, examples, thumbnail in zip(self.labels, self.examples, thumbnails, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Classifier(ClassifierRecord):
    """The result of one adaptation. Immutable: predicting never changes it.

    Attributes:
        W: (N, d) float32, W(T).
    """

    W: NDArray[np.float32]

    def probabilities(self, embeddings: NDArray[np.float32], temperature: float = 1.0) -> NDArray[np.float64]:
        """softmax(q W^T / temperature) (n, N) for embeddings q (n, d)."""
        return softmax(embeddings.astype(np.float64) @ self.W.T.astype(np.float64), temperature)


def softmax(logits: NDArray[np.float64], temperature: float = 1.0) -> NDArray[np.float64]:
    """Softmax over the last axis of logits (..., N) divided by a temperature > 0."""
    shifted = np.exp((logits - logits.max(axis=-1, keepdims=True)) / temperature)
    result: NDArray[np.float64] = shifted / shifted.sum(axis=-1, keepdims=True)
    return result
