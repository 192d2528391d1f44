"""A model being served: a bundle, its backbone, and the one thread that runs it."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle import Bundle
from comln_serve.engine.backbone import Backbone
from comln_serve.settings import Provider


class Model:
    """Embeds images with a bundle's backbone. Safe to call from many threads.

    A CUDA session has one compute stream, and on CPU one inference already uses every core, so a
    single thread per model runs them one after another.
    """

    def __init__(self, bundle: Bundle, provider: Provider, threads: int | None) -> None:
        self.bundle = bundle
        self.backbone = Backbone(bundle, provider, threads)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"embed-{bundle.name}")

    @property
    def name(self) -> str:
        return self.bundle.name

    @property
    def embedder_sha256(self) -> str:
        return self.bundle.embedder_sha256

    def embed(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Embeddings (n, d) of prepared images (n, S, S, 3)."""
        return self._thread.submit(self.backbone.embed, images).result()

    def warm(self) -> None:
        """Run the backbone once in every batch size."""
        self._thread.submit(self.backbone.warm).result()

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
