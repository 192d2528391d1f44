"""The replica that embeds: every bundle's backbone, on a GPU if Ray assigned one.

The plain server's batcher forms batches here from the images of all API replicas. The next batch
gathers while one is embedded, so batches grow with the load, and a lone request never waits.
`serve.batch` would wait for a fixed time, and counts requests, not images.
"""

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from comln_serve.configuration.settings import Settings
from comln_serve.engine.bundles import load_models
from comln_serve.engine.embedding.job import Job
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.logs import configure_logs
from comln_serve.machine import RunsOn, return_large_memory

Providers = dict[str, RunsOn]
"""What each model runs on, by `embedder_sha256`."""


class Embedding:
    """Backbones by `embedder_sha256`, so that versions of a bundle cannot be confused."""

    def __init__(self, settings: Settings) -> None:
        """Open and warm every backbone before Ray Serve sends requests.

        Raises:
            StartupError: a bundle or the provider cannot be used.
        """
        configure_logs(settings.log_level, settings.log_format)
        threadpool_limits(1, "blas")
        return_large_memory()
        self._settings = settings
        self._models = {model.embedder_sha256: model for model in load_models(settings).values()}
        for model in self._models.values():
            model.warm()

    async def providers(self) -> Providers:
        return {sha256: model.provider for sha256, model in self._models.items()}

    async def embed(self, embedder_sha256: str, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Embeddings (n, d) of images (n, S, S, 3). Cancelling the call drops its images.

        Raises:
            ServiceError: NOT_READY, this replica has no such backbone; or as `Job.wait`.
        """
        model = self._models.get(embedder_sha256)
        if model is None:
            raise ServiceError(
                ErrorCode.NOT_READY,
                "The machines of this server hold different versions of a model; tell the "
                "operator. Nothing was changed.",
                embedder_sha256=embedder_sha256,
            )
        job = Job(len(images), self._settings, finite=False)  # who asked knows which of its images each is
        with model.batcher.embedding(job, images):
            return (await job)[:, 0]
