"""What is kept of support images beside their embeddings, taken as each is decoded."""

from collections.abc import Collection, Sequence
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from comln_serve.domain.rejected import Rejected, without
from comln_serve.imaging import difference_hash, thumbnail


class Seen:
    """Perceptual hashes and thumbnails of a request's images, as the model sees these. Thread-safe."""

    def __init__(self, labels: Sequence[str], to_show: Collection[str]) -> None:
        """The labels (M,) of the request's images, and the classes to make a thumbnail of."""
        self._labels, self._to_show = labels, to_show
        self._hashes: list[int | None] = [None] * len(labels)
        self._first: dict[str, tuple[int, bytes]] = {}
        self._lock = Lock()

    def take(self, position: int, views: NDArray[np.uint8] | None) -> None:
        """Take the views (V, S, S, 3) of an image; None: it cannot be used. Called from any thread."""
        if views is None:
            return
        pixels = views[0]
        self._hashes[position] = difference_hash(pixels)
        label = self._labels[position]
        if label not in self._to_show or not self._is_first(label, position):
            return
        jpeg = thumbnail(pixels)
        with self._lock:
            if self._is_first(label, position):
                self._first[label] = position, jpeg

    def hashes(self, rejected: Sequence[Rejected]) -> list[int | None]:
        """Hashes of the images that are not rejected; None for an image that has none."""
        return without(self._hashes, rejected)

    def thumbnails(self, rejected: Sequence[Rejected]) -> dict[int, bytes]:
        """JPEG files of the first usable image of each class to show, by position among the images
        that are not rejected.
        """
        left = without(range(len(self._labels)), rejected)
        places = {position: place for place, position in enumerate(left)}
        return {places[position]: jpeg for position, jpeg in self._first.values()}

    def _is_first(self, label: str, position: int) -> bool:
        """Whether no image before this one has become the thumbnail of the class."""
        return position < self._first.get(label, (len(self._labels),))[0]
