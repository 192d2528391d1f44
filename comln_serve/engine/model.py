"""A served model: a bundle, and the batcher that computes its embeddings."""

from typing import Literal

from comln_serve.bundle import Bundle
from comln_serve.configuration.settings import Settings
from comln_serve.engine.embedding.backbone import Backbone
from comln_serve.engine.embedding.batcher import Batcher, BatchLimits
from comln_serve.errors import ErrorCode, ServiceError


class Model:
    """A bundle and the batcher that embeds with its backbone. Thread-safe.

    Attributes:
        in_this_process: whether the backbone runs in this process.
    """

    in_this_process = True

    def __init__(self, bundle: Bundle, batcher: Batcher) -> None:
        self.bundle, self.batcher = bundle, batcher
        self.embedder_sha256 = bundle.embedder_sha256  # kept here, as every prediction compares it

    @property
    def name(self) -> str:
        return self.bundle.name

    @property
    def provider(self) -> Literal["cuda", "cpu"]:
        """What the backbone runs on. Known once the model is warmed."""
        raise NotImplementedError

    def warm(self) -> None:
        """Prepare to embed. Called before the first image."""
        raise NotImplementedError

    def check(self) -> None:
        """Check, for readiness, that the model can embed.

        Raises:
            ServiceError: NOT_READY.
        """
        if self.batcher.stuck:
            raise ServiceError(
                ErrorCode.NOT_READY,
                f"The threads that embed for model {self.name!r} have ended or hang. Use another "
                "server, and start this one anew.",
            )

    def close(self) -> None:
        """Finish running batches, then end the threads."""
        self.batcher.close()


class LocalModel(Model):
    """Embeds in this process, with ONNX Runtime: image by image on a CPU, in batches on a GPU."""

    def __init__(self, bundle: Bundle, settings: Settings) -> None:
        """Open the backbone.

        Raises:
            StartupError: the bundle or the provider cannot be used.
        """
        self.backbone = Backbone(bundle, settings.provider, settings.inference_threads, settings.max_batch_size)
        # A CUDA session has one compute stream.
        limits = BatchLimits(
            max_images=settings.max_batch_size if self.backbone.batches else 1,
            max_delay_s=1e-3 * settings.max_batch_delay_ms,
            threads=1 if self.backbone.batches else self.backbone.threads,
            max_run_s=settings.max_inference_seconds,
        )
        super().__init__(bundle, Batcher(self.backbone, limits, name=bundle.name))

    @property
    def provider(self) -> Literal["cuda", "cpu"]:
        return self.backbone.provider

    def warm(self) -> None:
        """Run the backbone once in every batch size."""
        self.backbone.warm()
