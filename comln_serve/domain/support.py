"""The support set of a classifier, stored to adapt again without the images."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_CLASSES = 2


@dataclass(frozen=True)
class SupportSet:
    """Labelled embeddings in the order their images were sent. Immutable.

    Attributes:
        embeddings: (M, d) float32, phi.
        hashes: (M,) perceptual hashes of 64 bits; None for an example whose image has none, or that
            an earlier release stored.
        labels: (M,).
        numbers: (M,) increasing; callers refer to examples by them.
        next_number: number of the next example; numbers are never reused.
    """

    embeddings: NDArray[np.float32]
    hashes: tuple[int | None, ...]
    labels: tuple[str, ...]
    numbers: tuple[int, ...]
    next_number: int

    @classmethod
    def of(cls, embeddings: NDArray[np.float32], hashes: Sequence[int | None], labels: Sequence[str]) -> "SupportSet":
        """A support set with examples numbered from 1."""
        count = len(labels)
        return cls(embeddings, tuple(hashes), tuple(labels), tuple(range(1, count + 1)), count + 1)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> tuple[str, ...]:
        """(N,) distinct labels, in order of first appearance."""
        return tuple(dict.fromkeys(self.labels))

    def class_indices(self) -> NDArray[np.intp]:
        """(M,) position in `classes` of each example's label."""
        index = {label: i for i, label in enumerate(self.classes)}
        return np.array([index[label] for label in self.labels], dtype=np.intp)

    def extended(
        self, embeddings: NDArray[np.float32], hashes: Sequence[int | None], labels: Sequence[str]
    ) -> "SupportSet":
        """The support set with embeddings (m, d), hashes (m,) and labels (m,) appended."""
        following = self.next_number + len(labels)
        return SupportSet(
            np.concatenate([self.embeddings, embeddings]),
            (*self.hashes, *hashes),
            (*self.labels, *labels),
            (*self.numbers, *range(self.next_number, following)),
            following,
        )

    def without(self, number: int) -> "SupportSet":
        """The support set without one example.

        Raises:
            KeyError: no example has that number.
        """
        if number not in self.numbers:
            raise KeyError(number)
        i = self.numbers.index(number)
        return SupportSet(
            np.delete(self.embeddings, i, axis=0),
            self.hashes[:i] + self.hashes[i + 1 :],
            self.labels[:i] + self.labels[i + 1 :],
            self.numbers[:i] + self.numbers[i + 1 :],
            self.next_number,
        )
