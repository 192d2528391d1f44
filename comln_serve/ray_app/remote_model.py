"""A model whose embeddings are computed by embedding replicas."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle import Bundle
from comln_serve.engine.cancellation import Cancellation, client_gone
from comln_serve.engine.lane import Images
from comln_serve.engine.model import Model
from comln_serve.engine.turn import waited_too_long
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.ray_app.calls import Call, EmbeddingReplicas
from comln_serve.settings import Settings

# A replica looks after both deadlines itself. It gets this much longer to say so.
_GRACE_SECONDS = 1.0


class RemoteModel(Model):
    """The bundle is read here, its backbone runs elsewhere."""

    def __init__(self, bundle: Bundle, settings: Settings, replicas: EmbeddingReplicas) -> None:
        super().__init__(bundle)
        self._settings, self._replicas = settings, replicas
        self._provider: Literal["cuda", "cpu"] | None = None

    @property
    def provider(self) -> Literal["cuda", "cpu"]:
        if self._provider is None:
            raise RuntimeError("what a model runs on is known once it is warmed")
        return self._provider

    @contextmanager
    def turn(
        self, count: int, cancellation: Cancellation | None
    ) -> Generator["RemoteTurn", None, None]:
        turn = RemoteTurn(count, self.embedder_sha256, self._settings, self._replicas)
        with (cancellation or Cancellation()).calling(turn.cancel):
            yield turn

    def warm(self) -> None:
        """Wait for an embedding replica, which has warmed its backbones before it answers.

        Raises:
            ServiceError: NOT_READY, it has another version of this bundle.
        """
        providers = self._replicas.describe().providers
        if self.embedder_sha256 not in providers:
            raise ServiceError(
                ErrorCode.NOT_READY,
                f"model {self.name}: the machines hold different versions of this bundle; copy the "
                "same to models_dir on all of them",
            )
        self._provider = providers[self.embedder_sha256]

    def check(self) -> None:
        self._replicas.check()

    def close(self) -> None:
        """Nothing is held: replicas end with their deployment."""


class RemoteTurn:
    """One request's images on their way to embedding replicas and back: a `Turn`."""

    decode_share = 0.0

    def __init__(
        self, count: int, embedder_sha256: str, settings: Settings, replicas: EmbeddingReplicas
    ) -> None:
        self.count = count
        self._sha256, self._replicas = embedder_sha256, replicas
        self._max_queue_s = settings.max_queue_seconds
        self._max_run_s = settings.max_inference_seconds
        self._most = settings.max_batch_size
        self._lock = Lock()
        self._announced_at = time.monotonic()
        self._waited: float | None = None  # None: no image is being decoded yet
        self._cancelled = False
        self._calls: list[Call[NDArray[np.float32]]] = []

    def begin(self) -> None:
        """Its first image is being decoded, or another one."""
        with self._lock:
            self.check()
            self._waited = self._seconds_waited()

    def check(self) -> None:
        """Stop here if its caller has left, or no decoder has begun in time."""
        if self._cancelled:
            raise client_gone()
        if self._waited is None and self._seconds_waited() >= self._max_queue_s:
            raise waited_too_long(self._max_queue_s)

    def patience(self) -> float | None:
        """Seconds a decoder may still take to begin; None once one has."""
        if self._waited is not None:
            return None
        return max(0.0, self._max_queue_s - self._seconds_waited())

    def cancel(self) -> None:
        """Its caller has left: drop what has not been embedded."""
        with self._lock:
            self._cancelled = True
            calls = list(self._calls)
        for call in calls:
            call.cancel()

    def embed(self, images: Images) -> NDArray[np.float32]:
        """Embeddings (count, d), by as many replicas as there are batches in the images."""
        if len(images) != self.count:
            raise ValueError(f"{self.count} images were announced, {len(images)} handed over")
        self._send(np.asarray(images))
        sent_at = time.monotonic()
        try:
            # A copy: what comes out of Ray's object store cannot be written to.
            return np.concatenate([self._result(call, sent_at) for call in self._calls])
        except BaseException:
            for call in self._calls:
                call.cancel()
            raise

    def _send(self, images: NDArray[np.uint8]) -> None:
        with self._lock:
            self.check()
            waited = self._waited = self._seconds_waited()
            for start in range(0, self.count, self._most):
                piece = images[start : start + self._most]
                self._calls.append(self._replicas.embed(self._sha256, piece, waited))

    def _result(self, call: Call[NDArray[np.float32]], sent_at: float) -> NDArray[np.float32]:
        in_queue = self._max_queue_s - self._seconds_waited()
        try:
            return call.result(max(0.0, sent_at + in_queue - time.monotonic()))
        except TimeoutError:
            self._replicas.check()  # where there is none, more patience would be in vain
        in_all = in_queue + self._max_run_s + _GRACE_SECONDS
        try:
            return call.result(max(0.0, sent_at + in_all - time.monotonic()))
        except TimeoutError as error:
            raise ServiceError(
                ErrorCode.INFERENCE_TIMEOUT,
                f"No replica has embedded the images within {in_all:.3g} s. Nothing was changed; "
                "try again, or tell the operator.",
                allowed_seconds=self._max_run_s,
            ) from error

    def _seconds_waited(self) -> float:
        return time.monotonic() - self._announced_at if self._waited is None else self._waited
