"""The support set of a classifier, stored to adapt again without the images."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

MIN_CLASSES = 2
# Classes of one classifier that a thumbnail is kept of: about 300 kB.
MOST_THUMBNAILS = 100


def labels_to_show(labels: Iterable[str], shown: Mapping[str, int | None]) -> set[str]:
    """The classes among labels that should get a thumbnail: the first ones that have none.

    Args:
        shown: number of the example that a thumbnail is kept of, by class; None: none is.
    """
    room = MOST_THUMBNAILS - sum(number is not None for number in shown.values())
    return set([label for label in dict.fromkeys(labels) if shown.get(label) is None][:room])


@dataclass(frozen=True)
class SupportSet:
    """Labelled embeddings in the order their images were sent. Immutable.

    Attributes:
        embeddings: (M, V d) float32: of each image those of its V views, one after another (see `bundle.views`).
        hashes: (M,) perceptual hashes of 64 bits; None for an example whose image has none, or that
            an earlier release stored.
        labels: (M,).
        numbers: (M,) increasing; callers refer to examples by them.
        next_number: number of the next example; numbers are never reused.
        thumbnails: JPEG files by example number, of at most one example of a class and of at most
            `MOST_THUMBNAILS` classes; empty unless the operator has the server keep them.
    """

    embeddings: NDArray[np.float32]
    hashes: tuple[int | None, ...]
    labels: tuple[str, ...]
    numbers: tuple[int, ...]
    next_number: int
    thumbnails: Mapping[int, bytes] = field(default_factory=dict[int, bytes])

    @classmethod
    def of(
        cls,
        embeddings: NDArray[np.float32],
        hashes: Sequence[int | None],
        labels: Sequence[str],
        thumbnails: Mapping[int, bytes] | None = None,
    ) -> "SupportSet":
        """A support set with examples numbered from 1.

        Args:
            thumbnails: JPEG files by position, as the attribute's are by number.
        """
        count = len(labels)
        numbered = {position + 1: jpeg for position, jpeg in (thumbnails or {}).items()}
        return cls(embeddings, tuple(hashes), tuple(labels), tuple(range(1, count + 1)), count + 1, numbered)

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

    def thumbnails_by_class(self) -> tuple[int | None, ...]:
        """(N,) number of the example of each class that there is a thumbnail of; empty if there are none at all."""
        if not self.thumbnails:
            return ()
        pairs = zip(self.labels, self.numbers, strict=True)
        found = {label: number for label, number in pairs if number in self.thumbnails}
        return tuple(map(found.get, self.classes))

    def extended(self, more: "SupportSet") -> "SupportSet":
        """The support set with the examples of another one appended, which get the next numbers.

        Of their thumbnails, those of classes that have none yet are kept.
        """
        following = self.next_number + len(more)
        numbers = range(self.next_number, following)
        shown = dict(zip(self.classes, self.thumbnails_by_class(), strict=False))
        wanted = labels_to_show(more.labels, shown)
        added = {
            number: more.thumbnails[old]
            for number, old, label in zip(numbers, more.numbers, more.labels, strict=True)
            if old in more.thumbnails and label in wanted
        }
        return SupportSet(
            np.concatenate([self.embeddings, more.embeddings]),
            (*self.hashes, *more.hashes),
            (*self.labels, *more.labels),
            (*self.numbers, *numbers),
            following,
            {**self.thumbnails, **added},
        )

    def renamed(self, labels: Mapping[str, str]) -> "SupportSet":
        """The support set with other labels for some of its classes, by the label that each has.

        Classes that get the same label are merged, and keep the first of their thumbnails.
        """
        return self._labelled([labels.get(label, label) for label in self.labels])

    def relabelled(self, labels: Mapping[int, str]) -> "SupportSet":
        """The support set with other labels for some of its examples, by number.

        Of the thumbnails that come together in a class the first is kept.
        """
        return self._labelled(
            [labels.get(number, label) for number, label in zip(self.numbers, self.labels, strict=True)]
        )

    def _labelled(self, labels: Sequence[str]) -> "SupportSet":
        kept: dict[str, int] = {}
        for label, number in zip(labels, self.numbers, strict=True):
            if number in self.thumbnails:
                kept.setdefault(label, number)
        thumbnails = {number: self.thumbnails[number] for number in kept.values()}
        return replace(self, labels=tuple(labels), thumbnails=thumbnails)

    def without(self, numbers: Collection[int]) -> "SupportSet":
        """The support set without the examples of these numbers, and without the thumbnails made of them."""
        removed = set(numbers)
        left = [i for i, number in enumerate(self.numbers) if number not in removed]
        return SupportSet(
            self.embeddings[left],
            tuple(self.hashes[i] for i in left),
            tuple(self.labels[i] for i in left),
            tuple(self.numbers[i] for i in left),
            self.next_number,
            {number: jpeg for number, jpeg in self.thumbnails.items() if number not in removed},
        )
