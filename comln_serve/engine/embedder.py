"""From image files to embeddings: decoders, shared by all models, and a model's batches."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from comln_serve.engine.admission import Admission
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.clock import StageClock, tell
from comln_serve.engine.decoders import Decoders
from comln_serve.engine.model import Model
from comln_serve.machine import usable_cpus
from comln_serve.settings import Settings


class Embedder:
    """Decodes and embeds. Safe from many threads.

    Attributes:
        images: how many are under way; whoever embeds admits them there first.
    """

    def __init__(self, settings: Settings) -> None:
        self.images = Admission(settings.max_pending_images, "images")
        self.decoders = Decoders(
            settings.decode_threads or usable_cpus(), settings.max_image_pixels
        )

    def embed(
        self,
        files: Sequence[bytes],
        model: Model,
        clock: StageClock,
        cancellation: Cancellation | None,
    ) -> NDArray[np.float32]:
        """Embeddings (n, d) of n image files."""
        with model.turn(len(files), cancellation) as turn:
            with clock.stage("decode"):
                images = self.decoders.prepare(files, model.bundle.manifest.preprocessing, turn)
            with clock.stage("embed"):
                embeddings = turn.embed(images)
            now = model.batcher.clock()
            for began, ended in turn.waits:
                tell("queue", ended - began, ago=now - ended)
            return embeddings

    def close(self) -> None:
        """Release the threads."""
        self.decoders.close()
