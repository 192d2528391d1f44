"""A model being served: a bundle, its backbone, and the batches that run through it."""

from contextlib import AbstractContextManager

from comln_serve.bundle import Bundle
from comln_serve.engine.backbone import Backbone
from comln_serve.engine.batcher import Batcher, BatchLimits, Turn
from comln_serve.engine.cancellation import Cancellation
from comln_serve.settings import Settings


class Model:
    """Embeds images with a bundle's backbone. Safe to call from many threads.

    A CUDA session has one compute stream, and on CPU one batch already uses every core, so the
    batches of a model run one after another.
    """

    def __init__(self, bundle: Bundle, settings: Settings) -> None:
        self.bundle = bundle
        self.backbone = Backbone(
            bundle, settings.provider, settings.inference_threads, settings.max_batch_size
        )
        limits = BatchLimits(
            max_images=settings.max_batch_size,
            max_delay_s=1e-3 * settings.max_batch_delay_ms,
            max_queue_s=settings.max_queue_seconds,
            max_run_s=settings.max_inference_seconds,
        )
        self.batcher = Batcher(
            self.backbone.embed, limits, name=bundle.name, interrupt=self.backbone.interrupt
        )

    @property
    def name(self) -> str:
        return self.bundle.name

    @property
    def embedder_sha256(self) -> str:
        return self.bundle.embedder_sha256

    def turn(self, count: int, cancellation: Cancellation | None) -> AbstractContextManager[Turn]:
        """Announce `count` images: `Batcher.turn`."""
        return self.batcher.turn(count, cancellation)

    def warm(self) -> None:
        """Run the backbone once in every batch size; before the first turn."""
        self.backbone.warm()

    def close(self) -> None:
        """Embed what has been handed over, then release the threads."""
        self.batcher.close()
        self.backbone.close()
