"""A model whose embeddings are computed on embedding replicas."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle import Bundle
from comln_serve.configuration.settings import Settings
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.embedding.batcher import Batcher, BatchLimits
from comln_serve.engine.models import Model
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.ray_app.calls import EmbeddingReplicas

# Simultaneous calls of replicas, for each model and API replica.
CALLS = 16


class RemoteModel(Model):
    """A bundle that is read in this process, and whose backbone runs on embedding replicas."""

    on_this_machine = False

    def __init__(self, bundle: Bundle, settings: Settings, replicas: EmbeddingReplicas) -> None:
        limits = BatchLimits(
            max_images=settings.max_batch_size,
            max_delay_s=1e-3 * settings.max_batch_delay_ms,
            threads=CALLS,
            max_run_s=settings.max_inference_seconds,
        )
        network = _RemoteNetwork(bundle.embedder_sha256, settings, replicas)
        super().__init__(bundle, Batcher(network, limits, name=bundle.name))
        self._replicas = replicas
        self._provider: Literal["cuda", "cpu"] | None = None

    @property
    def provider(self) -> Literal["cuda", "cpu"]:
        if self._provider is None:
            raise RuntimeError("what a model runs on is known once it is warmed")
        return self._provider

    def warm(self) -> None:
        """Wait for an embedding replica, which has warmed its backbones before it answers.

        Raises:
            ServiceError: NOT_READY, the replica has another version of this bundle.
        """
        providers = self._replicas.providers()
        if self.embedder_sha256 not in providers:
            raise ServiceError(
                ErrorCode.NOT_READY,
                f"model {self.name}: the machines hold different versions of this bundle; copy the "
                "same to models_dir on all of them",
            )
        self._provider = providers[self.embedder_sha256]

    def check(self) -> None:
        super().check()
        self._replicas.check()


class _RemoteNetwork:
    """Sends batches to embedding replicas."""

    def __init__(self, embedder_sha256: str, settings: Settings, replicas: EmbeddingReplicas) -> None:
        self._sha256, self._replicas = embedder_sha256, replicas
        self._max_queue_s = settings.max_queue_seconds

    def embed(
        self,
        images: NDArray[np.uint8],
        cancellation: Cancellation,
        *,
        alone: bool,  # noqa: ARG002 - the replica's batcher decides
    ) -> NDArray[np.float32]:
        """See `Network`."""
        call = self._replicas.embed(self._sha256, images)
        with cancellation.calling(call.cancel):
            try:
                return call.result(self._max_queue_s)
            except TimeoutError:
                self._replicas.check()  # without a replica, waiting longer is useless
            return call.result(None)  # the time limits of its jobs will cancel it
