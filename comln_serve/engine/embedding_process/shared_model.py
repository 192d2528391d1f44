"""A model whose backbone runs in the process that embeds for all processes that serve."""

import logging
import os
import pickle
import socket
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle import Bundle
from comln_serve.configuration.settings import Settings
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.embedding.batcher import Batcher
from comln_serve.engine.embedding_process.wire import BatchMemory, Opened, ask, memory_file, new_socket
from comln_serve.engine.models import Model
from comln_serve.errors import ErrorCode, ServiceError, StartupError

logger = logging.getLogger(__name__)

_ATTEMPTS = 5

_Result = TypeVar("_Result")


class Channel:
    """A connection to the process that embeds, for one model. For one thread at a time."""

    def __init__(self, path: Path, bundle: Bundle) -> None:
        """Connect. While no process embeds, the connection waits for one.

        Raises:
            OSError: no process embeds, and the parent of all has gone.
        """
        self._bundle = bundle
        self._opened: Opened | None = None
        self._most: int | None = None
        self._memory: BatchMemory | None = None
        self._connection = new_socket()
        try:
            self._connection.connect(str(path))
        except OSError:
            self._connection.close()
            raise

    def open(self) -> Opened:
        """Have the bundle opened, if it is not.

        Raises:
            OSError: the process has died, here and below.
            StartupError: the bundle or the provider cannot be used.
        """
        opened = self._opened or ask(self._connection, "open", self._bundle.embedder_sha256)
        if opened is None:  # the bundle is not known yet
            pickled = pickle.dumps(self._bundle)
            with memory_file(len(pickled)) as file:
                os.pwrite(file, pickled, 0)
                opened = ask(self._connection, "take_bundle", file=file)
        self._opened = opened
        return opened

    def warm(self) -> int:
        """Have the backbone warmed, if it is not. Returns the number of images that a batch may have.

        Raises:
            StartupError: it cannot be run.
        """
        if self._most is None:
            self.open()
            self._most = int(ask(self._connection, "warm"))
        return self._most

    def embed(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Embeddings (n, d) of images (n, S, S, 3).

        Raises:
            ServiceError: they cannot be embedded.
        """
        self.warm()
        memory = self._memory
        if memory is None or len(memory.images) < len(images):
            manifest, most = self._bundle.manifest, max(len(images), self.open().max_images)
            shape = (most, manifest.preprocessing.image_size, manifest.embedding_size)
            with memory_file(BatchMemory.length(*shape)) as file:
                ask(self._connection, "take_memory", most, file=file)
                memory = self._memory = BatchMemory(file, *shape)
        memory.images[: len(images)] = images
        ask(self._connection, "embed", len(images))
        return memory.embeddings[: len(images)].copy()

    def interrupt(self) -> None:
        """Have another thread that waits for an answer fail. This connection is of no use any more."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class SharedModel(Model):
    """A bundle that is read in this process, and whose backbone runs in the process that embeds.

    The provider may change: a process that takes another's place may not find the GPU any more.
    """

    def __init__(self, bundle: Bundle, settings: Settings, path: Path, workers: int) -> None:
        """Have the bundle opened.

        Args:
            path: of the socket that the process that embeds listens on.
            workers: processes that serve, this one included.

        Raises:
            StartupError: the bundle or the provider cannot be used, or the process ends again and again.
        """
        self.bundle, self._path, self._workers = bundle, path, workers
        self._lock = Lock()
        self._idle: list[Channel] = []
        try:
            opened = self._on_channel(Channel.open)
        except ServiceError as error:
            raise StartupError(f"model {bundle.name}: {error.message}") from error
        batcher = Batcher(
            weakref.proxy(self),  # a cycle would never be freed: a warm server excludes its objects from collection
            settings,
            name=bundle.name,
            max_images=self._share(opened.max_images),
            at_once=max(2, opened.batches),  # so that a batch waits there when another has been embedded
            gathers=opened.provider == "cuda",
        )
        super().__init__(bundle, batcher)

    def warm(self) -> None:
        """Have the backbone warmed.

        Raises:
            StartupError: it cannot be run.
            ServiceError: NOT_READY, the process that embeds died again and again.
        """
        self.batcher.max_images = self._share(self._on_channel(Channel.warm))

    def close(self) -> None:
        super().close()
        self._close_idle()

    def embed(
        self,
        images: NDArray[np.uint8],
        cancellation: Cancellation,
        *,
        alone: bool,  # noqa: ARG002 - the process that embeds decides
    ) -> NDArray[np.float32]:
        """See `Network`. A batch whose process has died is sent to the next: embedding changes nothing.

        Raises:
            ServiceError: NOT_READY, as above, or the bundle cannot be opened again; CLIENT_GONE; or that of the other
                process.
        """

        def embed(channel: Channel) -> NDArray[np.float32]:
            try:
                with cancellation.calling(channel.interrupt):
                    embeddings = channel.embed(images)
            except OSError:
                cancellation.check()
                raise
            except StartupError as error:
                raise ServiceError(ErrorCode.NOT_READY, f"The model cannot be used at the moment: {error}") from error
            cancellation.check()  # the channel may be interrupted yet, and is of no use then
            return embeddings

        return self._on_channel(embed)

    def _share(self, images: int) -> int:
        """Images in a batch of this process: those of all together fill one of `images`.

        If each were as large as that, a single image would wait until many such batches have been embedded.
        """
        return max(1, images // self._workers)

    def _close_idle(self) -> None:
        """Close the connections that are not in use."""
        with self._lock:
            idle, self._idle = self._idle, []
        for channel in idle:
            channel.close()

    def _on_channel(self, use: Callable[[Channel], _Result]) -> _Result:
        """Call a function with a connection that no other thread uses, and again with another if its process dies."""
        for _ in range(_ATTEMPTS):
            with self._lock:
                channel = self._idle.pop() if self._idle else None
            try:
                channel = channel or Channel(self._path, self.bundle)
                result = use(channel)
                self.provider = channel.open().provider
            except (ConnectionError, FileNotFoundError) as error:
                logger.warning("model %s: the connection to the process that embeds broke: %s", self.name, error)
            except BaseException:
                if channel is not None:
                    channel.close()
                raise
            else:
                with self._lock:
                    self._idle.append(channel)
                return result
            if channel is not None:
                channel.close()
            self._close_idle()  # the others were of the same process, or are soon made anew
        raise ServiceError(
            ErrorCode.NOT_READY,
            f"The process that was to embed the images died {_ATTEMPTS} times. Nothing was changed; try again, or tell "
            "the operator.",
        )
