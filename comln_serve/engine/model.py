"""A model being served: a bundle, and the place where its embeddings are computed."""

from typing import Literal

from comln_serve.bundle import Bundle
from comln_serve.engine.embedding.backbone import Backbone
from comln_serve.engine.embedding.batcher import Batcher, BatchLimits
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.settings import Settings


class Model:
    """A bundle and the batcher that embeds with its backbone. Safe from many threads.

    Attributes:
        in_this_process: whether the backbone runs here.
    """

    in_this_process = True

    def __init__(self, bundle: Bundle, batcher: Batcher) -> None:
        self.bundle, self.batcher = bundle, batcher
        self.embedder_sha256 = bundle.embedder_sha256  # every prediction compares it

    @property
    def name(self) -> str:
        return self.bundle.name

    @property
    def provider(self) -> Literal["cuda", "cpu"]:
        """What the backbone really runs on; once warmed."""
        raise NotImplementedError

    def warm(self) -> None:
        """Get ready to embed; before the first image."""
        raise NotImplementedError

    def check(self) -> None:
        """For readiness: whether there is something that embeds.

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
        """Finish what is under way, then release threads."""
        self.batcher.close()


class LocalModel(Model):
    """Embeds in this process, with ONNX Runtime: image by image on a CPU, in batches on a GPU."""

    def __init__(self, bundle: Bundle, settings: Settings) -> None:
        """Open the backbone.

        Raises:
            StartupError: the bundle or the provider cannot be used.
        """
        self.backbone = Backbone(
            bundle, settings.provider, settings.inference_threads, settings.max_batch_size
        )
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
