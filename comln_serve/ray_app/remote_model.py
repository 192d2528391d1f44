"""A model whose embeddings are computed on embedding replicas."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.serve.handle import DeploymentHandle

from comln_serve.bundle import Bundle
from comln_serve.configuration.settings import Settings
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.embedding.batcher import Batcher
from comln_serve.engine.models import Model
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.ray_app.calls import Call, check_replicas
from comln_serve.ray_app.embedding import Providers

# Simultaneous calls of replicas, for each model and API replica.
CALLS = 16


class RemoteModel(Model):
    """A bundle that is read in this process, and whose backbone runs on embedding replicas."""

    on_this_machine = False

    def __init__(self, bundle: Bundle, settings: Settings, replicas: DeploymentHandle[Any]) -> None:
        self._replicas, self._max_queue_s = replicas, settings.max_queue_seconds
        batcher = Batcher(
            self, settings, name=bundle.name, max_images=settings.max_batch_size, at_once=CALLS, gathers=True
        )
        super().__init__(bundle, batcher)

    def warm(self) -> None:
        """Wait for an embedding replica, which has warmed its backbones before it answers.

        Raises:
            ServiceError: NOT_READY, the replica has another version of this bundle.
        """
        providers = Call[Providers](self._replicas, "providers").result(None)
        if self.embedder_sha256 not in providers:
            raise ServiceError(
                ErrorCode.NOT_READY,
                f"model {self.name}: the machines hold different versions of this bundle; copy the "
                "same to models_dir on all of them",
            )
        self.provider = providers[self.embedder_sha256]

    def check(self) -> None:
        super().check()
        check_replicas(self._replicas)

    def embed(
        self,
        images: NDArray[np.uint8],
        cancellation: Cancellation,
        *,
        alone: bool,  # noqa: ARG002 - the replica's batcher decides
    ) -> NDArray[np.float32]:
        """See `Network`."""
        call = Call[NDArray[np.float32]](self._replicas, "embed", self.embedder_sha256, images)
        with cancellation.calling(call.cancel):
            try:
                return call.result(self._max_queue_s)
            except TimeoutError:
                check_replicas(self._replicas)  # without a replica, waiting longer is useless
            return call.result(None)  # the time limits of its jobs will cancel it
