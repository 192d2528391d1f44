"""A model being served: a bundle, and the place where its embeddings are computed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle import Bundle
from comln_serve.engine.backbone import Backbone
from comln_serve.engine.batcher import Batcher, BatchLimits
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.clock import tell
from comln_serve.engine.lane import BatchLane, ImageLane, Images, Lane
from comln_serve.engine.turn import Turn as LocalTurn
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.imaging import prepare_image
from comln_serve.settings import Settings

# Lanes beyond one for each core: while some wait for Python, which has one thread run at a time,
# others compute.
_MORE = 2


class Turn(Protocol):
    """One request's images on their way to their embeddings; `LocalTurn` is one."""

    def begin(self) -> None:
        """An image is being decoded: the request is not waiting, and still wanted.

        Raises:
            ServiceError: CLIENT_GONE or QUEUE_TIMEOUT, it is not worth decoding.
        """

    def check(self) -> None:
        """Stop here if its caller has left or a deadline has passed.

        Raises:
            ServiceError: as `embed`.
        """

    def patience(self) -> float | None:
        """Seconds until `check` should be asked again, None where no deadline runs."""

    def embed(self, images: Images) -> NDArray[np.float32]:
        """Embeddings (n, d) of all images that were announced: decoded (n, S, S, 3), or files
        where the model `decodes`. Once only.

        Raises:
            ServiceError: CLIENT_GONE, QUEUE_TIMEOUT, INFERENCE_TIMEOUT, OVERLOADED, NOT_READY;
                INTERNAL where embedding failed; of the first file that cannot be used, naming its
                position.
        """
        ...

    @property
    def decode_share(self) -> float:
        """Of the time that `embed` took, what went into decoding."""
        ...


class Model(ABC):
    """Embeds images with a bundle's backbone. Safe to call from many threads.

    Attributes:
        decodes: its turns take image files.
    """

    decodes = False

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.embedder_sha256 = bundle.embedder_sha256  # every prediction compares it

    @property
    def name(self) -> str:
        return self.bundle.name

    @property
    @abstractmethod
    def provider(self) -> Literal["cuda", "cpu"]:
        """What the backbone really runs on; once warmed."""

    @abstractmethod
    def turn(self, count: int, cancellation: Cancellation | None) -> AbstractContextManager[Turn]:
        """Announce `count` >= 1 images, which are handed over or given up within the block.

        Raises:
            ServiceError: NOT_READY, the server is stopping.
        """

    @abstractmethod
    def warm(self) -> None:
        """Get ready to embed; before the first turn."""

    @abstractmethod
    def check(self) -> None:
        """For readiness: whether there is something that embeds.

        Raises:
            ServiceError: NOT_READY.
        """

    @abstractmethod
    def close(self) -> None:
        """Finish what has been handed over, then release threads."""


class LocalModel(Model):
    """Embeds in this process, with ONNX Runtime.

    A CUDA session has one compute stream, so the batches of a model run one after another there. On
    a CPU each core decodes and embeds an image of its own.
    """

    def __init__(self, bundle: Bundle, settings: Settings) -> None:
        super().__init__(bundle)
        self.backbone = Backbone(
            bundle, settings.provider, settings.inference_threads, settings.max_batch_size
        )
        self.decodes = not self.backbone.batches
        policy, max_pixels = bundle.manifest.preprocessing, settings.max_image_pixels
        formats = settings.accepted_formats

        def prepare(file: bytes, check: Callable[[], None]) -> NDArray[np.uint8]:
            return prepare_image(file, policy, max_pixels=max_pixels, formats=formats, check=check)

        lanes: Sequence[Lane] = [BatchLane(self.backbone)]
        if self.decodes:
            count = self.backbone.threads + _MORE
            lanes = [ImageLane(self.backbone, prepare) for _ in range(count)]
        limits = BatchLimits(
            max_images=1 if self.decodes else settings.max_batch_size,
            # What gains nothing from company need not wait for it.
            max_delay_s=0.0 if self.decodes else 1e-3 * settings.max_batch_delay_ms,
            max_queue_s=settings.max_queue_seconds,
            max_run_s=settings.max_inference_seconds,
        )
        self.batcher = Batcher(lanes, limits, name=bundle.name)

    @property
    def provider(self) -> Literal["cuda", "cpu"]:
        return self.backbone.provider

    @contextmanager
    def turn(
        self, count: int, cancellation: Cancellation | None
    ) -> Generator[LocalTurn, None, None]:
        with self.batcher.turn(count, cancellation) as turn:
            yield turn
            now = self.batcher.clock()
            for began, ended in turn.waits:
                tell("queue", ended - began, ago=now - ended)

    def warm(self) -> None:
        """Run the backbone once in every batch size."""
        self.backbone.warm()

    def check(self) -> None:
        if not self.batcher.alive:
            raise ServiceError(
                ErrorCode.NOT_READY,
                f"A thread that embeds for model {self.bundle.name!r} has ended, which must not "
                "happen. Use another server, and start this one anew.",
            )

    def close(self) -> None:
        self.batcher.close()
        self.backbone.close()
