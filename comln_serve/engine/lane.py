"""A thread's way through a backbone: many images at once on a GPU, one after another on a CPU."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from comln_serve.engine.backbone import Backbone

# As they come (n, S, S, 3), or as files yet to be decoded.
Images = NDArray[np.uint8] | Sequence[bytes]
# Made of a file; what is given with it is called while it has to wait, and may raise.
Prepare = Callable[[bytes, Callable[[], None]], NDArray[np.uint8]]


class Lane(Protocol):
    """What a batcher feeds; from one thread, but for `interrupt`."""

    def run(self, images: Images, *, alone: bool) -> tuple[NDArray[np.float32], float]:
        """Embeddings (n, d) of n images, row by row, and the seconds that went into decoding.

        Args:
            alone: there is nothing else to be done.

        Raises:
            ServiceError: a file cannot be decoded.
        """
        ...

    def interrupt(self) -> None:
        """Make the `run` that takes too long return or raise soon. Called from another thread."""


class BatchLane:
    """Batches of decoded images, for a GPU. There is one: a session has one compute stream."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    def run(self, images: Images, *, alone: bool) -> tuple[NDArray[np.float32], float]:  # noqa: ARG002 - a GPU has one stream
        return self._backbone.embed(np.asarray(images)), 0.0

    def interrupt(self) -> None:
        self._backbone.interrupt()


class ImageLane:
    """One image at a time, for a core of a CPU: what it has decoded is in its cache when it is
    embedded, and nobody else has to be woken in between.
    """

    def __init__(self, backbone: Backbone, prepare: Prepare) -> None:
        """Share a backbone with other lanes.

        Args:
            prepare: an image file to the backbone's input (S, S, 3).
        """
        self._backbone, self._prepare = backbone, prepare
        self._options = ort.RunOptions()

    def run(self, images: Images, *, alone: bool) -> tuple[NDArray[np.float32], float]:
        # An interruption of the last run is none of this one's; one while it decodes is.
        self._options = options = ort.RunOptions()
        began = time.perf_counter()
        (image,) = images

        def check() -> None:
            if options.terminate:
                raise RuntimeError("it was given up while it waited to be decoded")

        pixels = self._prepare(image, check) if isinstance(image, bytes) else image
        decoding = time.perf_counter() - began
        return self._backbone.embed_one(pixels, options, alone=alone), decoding

    def interrupt(self) -> None:
        self._options.terminate = True
