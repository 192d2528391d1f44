"""Models: bundles with the batchers that compute their embeddings."""

from comln_serve.bundle import Bundle
from comln_serve.configuration.settings import Settings
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.engine.embedding.batcher import Batcher
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.machine import RunsOn, cpus_of_each


class Model:
    """A bundle and the batcher that embeds with its backbone. Thread-safe.

    Attributes:
        on_this_machine: whether the backbone runs on this machine.
        provider: what it runs on; known once the model is warmed.
    """

    on_this_machine = True
    provider: RunsOn

    def __init__(self, bundle: Bundle, batcher: Batcher) -> None:
        self.bundle, self.batcher = bundle, batcher
        self.embedder_sha256 = bundle.embedder_sha256

    @property
    def name(self) -> str:
        return self.bundle.name

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
    """Embeds in this process: in batches, which a CPU embeds one on each core."""

    def __init__(self, bundle: Bundle, settings: Settings, processes: int) -> None:
        """Open the backbone. Each of the server's processes uses its share of the CPUs.

        Raises:
            StartupError: the bundle or the provider cannot be used.
        """
        threads = settings.inference_threads or cpus_of_each(processes)
        self.backbone = OnnxBackbone(bundle, settings.provider, threads, settings.max_batch_size)
        self.provider = self.backbone.provider
        on_gpu, most = self.backbone.on_gpu, self.backbone.max_batch_size
        at_once = 1 if on_gpu else self.backbone.threads  # a CUDA session has one compute stream
        batcher = Batcher(self.backbone, settings, name=bundle.name, max_images=most, at_once=at_once, gathers=on_gpu)
        super().__init__(bundle, batcher)

    def warm(self) -> None:
        """Run the backbone; on CUDA once in every batch size."""
        self.backbone.warm()
        self.batcher.max_images = self.backbone.max_batch_size
