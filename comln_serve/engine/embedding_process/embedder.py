"""The process that embeds: opens the bundles that it is given, and embeds batches of all processes that serve.

It holds no state of its own: when it dies, another takes its place, which the processes that serve give their bundles
and unanswered batches.
"""

import logging
import math
import os
import pickle
import select
import socket
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from comln_serve.bundle import Bundle
from comln_serve.configuration.settings import Settings
from comln_serve.counts import Count, SharedCounts
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.embedding.job import Job, embedding_failed
from comln_serve.engine.embedding_process.wire import BatchMemory, Opened, new_socket, receive, send
from comln_serve.engine.models import LocalModel
from comln_serve.errors import ServiceError, StartupError

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
_BACKLOG = 1024
# A model stays open for so long after the last connection that used it: a connection ends with each batch that is given
# up, and the next batch should not wait until the model is opened again.
_KEPT_S = 60.0


def listen_for_batches(path: Path) -> socket.socket:
    """The socket that the embedding process accepts connections on.

    It is made by the parent of all processes, so that connections wait in it while one embedding process takes the
    place of another.

    Raises:
        StartupError: the path is too long.
    """
    listening = new_socket()
    try:
        listening.bind(str(path))
    except OSError as error:
        listening.close()
        raise StartupError(
            f"{path}: the socket of the process that embeds cannot be made: {error.strerror or error}. Set TMPDIR to "
            "a folder with a short path, or start with --embedding-process off"
        ) from error
    listening.listen(_BACKLOG)
    return listening


class Embedder:
    """Serves connections, each on a thread of its own."""

    def __init__(self, listening: socket.socket, settings: Settings, shared: SharedCounts) -> None:
        self._listening, self._settings, self._shared = listening, settings, shared
        self._networks = _Networks(settings)
        self._gone: dict[int, Cancellation] = {}  # by the connection's descriptor

    def run(self) -> int:
        """Serve until the parent has gone and nobody is connected, or threads hang. Returns the exit status."""
        logger.info("process %d embeds for %d that serve", os.getpid(), self._shared.processes)
        with select.epoll() as events:
            events.register(self._listening, select.EPOLLIN)
            while True:
                self._shared.set(Count.ALIVE, int(1000 * time.monotonic()))
                happened = {file for file, _ in events.poll(_LOOK_S)}
                new = self._listening.fileno() in happened
                # First these: a new connection may get the descriptor of one that has ended.
                for file in happened - {self._listening.fileno()}:
                    self._gone.pop(file).cancel()
                if new:
                    self._accept(events)
                self._networks.close_unused()
                if (stuck := self._networks.stuck()) is not None:
                    logger.error("the threads that embed for model %s have ended or hang", stuck)
                    return 1
                if os.getppid() != self._shared.parent and not self._networks.used:
                    return 0

    def _accept(self, events: "select.epoll") -> None:
        """Serve a new connection, and have its end noticed while its batch is embedded, too."""
        try:
            connection, _ = self._listening.accept()
        except OSError:  # no descriptor is left for it; it waits
            logger.exception("a connection cannot be accepted")
            time.sleep(_LOOK_S)
            return
        gone = self._gone[connection.fileno()] = Cancellation()
        events.register(connection, select.EPOLLRDHUP | select.EPOLLONESHOT)
        Thread(target=self._serve, args=(connection, gone), name="channel", daemon=True).start()

    def _serve(self, connection: socket.socket, gone: Cancellation) -> None:
        """Answer the calls of one connection until its process closes it or dies, at which `gone` is raised."""
        user = User(self._networks, self._settings, gone)
        with connection:
            try:
                while True:
                    with receive(connection) as ((method, *arguments), files):
                        send(connection, _answer(user, method, *arguments, *files))
            except OSError:
                pass
            finally:
                user.leave()


def _answer(user: "User", method: str, *arguments: Any) -> object:
    try:
        return getattr(user, method)(*arguments)
    except (ServiceError, StartupError) as error:
        return error.with_traceback(None)  # its frames refer to the memory of the batch, and would keep it
    except Exception:
        logger.exception("a request of a process that serves failed")
        return embedding_failed()


@dataclass
class _Network:
    """A model that is open, and how many connections use it."""

    model: LocalModel
    users: int = 0
    unused_since: float = math.inf
    warm: bool = False

    @property
    def forgotten(self) -> bool:
        """Whether no connection has used it for a while."""
        return not self.users and time.monotonic() > self.unused_since + _KEPT_S


class _Networks:
    """The models that are open, by `embedder_sha256`: each for as long as a connection uses it, and a while longer."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open: dict[str, _Network] = {}
        # One for each model, so that several can be opened at the same time, but each only once.
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)

    @property
    def used(self) -> bool:
        """Whether a connection uses any of them."""
        return any(network.users for network in list(self._open.values()))

    def stuck(self) -> str | None:
        """The name of a model whose threads have ended or hang."""
        models = [network.model for network in list(self._open.values())]
        return next((model.name for model in models if model.batcher.stuck), None)

    def take(self, sha256: str, bundle: Bundle | None) -> LocalModel | None:
        """Use a model, which is opened if it is not yet; None: it is not open, and there is no bundle.

        Raises:
            StartupError: the bundle or the provider cannot be used.
        """
        with self._locks[sha256]:
            if sha256 not in self._open:
                if bundle is None:
                    return None
                self._open[sha256] = _Network(LocalModel(bundle, self._settings, 1))
            network = self._open[sha256]
            network.users += 1
            return network.model

    def warm(self, sha256: str) -> None:
        """Warm a model, once.

        Raises:
            StartupError: ONNX Runtime cannot run it.
        """
        with self._locks[sha256]:
            network = self._open[sha256]
            if not network.warm:
                network.model.warm()
                network.warm = True

    def give_back(self, sha256: str) -> None:
        """Stop to use a model."""
        with self._locks[sha256]:
            network = self._open[sha256]
            network.users -= 1
            network.unused_since = time.monotonic()

    def close_unused(self) -> None:
        """Close the models that nobody has used for a while."""
        # One that is in use may be warming, for long, with its lock held.
        for sha256 in [sha256 for sha256, network in list(self._open.items()) if network.forgotten]:
            with self._locks[sha256]:
                network = self._open[sha256]
                if not network.forgotten:
                    continue  # a connection came
                del self._open[sha256]
            network.model.close()


class User:
    """What one connection uses: a model, and memory for its batches. See `wire` for the calls."""

    def __init__(self, networks: _Networks, settings: Settings, gone: Cancellation) -> None:
        self._networks, self._settings, self._gone = networks, settings, gone
        self._model: LocalModel | None = None
        self._memory: BatchMemory  # from `take_memory` on

    @property
    def model(self) -> LocalModel:
        """The model, which every connection asks for first."""
        if self._model is None:
            raise RuntimeError("no model is open")
        return self._model

    def open(self, sha256: str, bundle: Bundle | None = None) -> Opened | None:
        """Use the model with this `embedder_sha256` from now on; None: it is not open, and there is no bundle.

        Raises:
            StartupError: the bundle or the provider cannot be used.
        """
        self._model = self._networks.take(sha256, bundle)
        if self._model is None:
            return None
        batcher = self._model.batcher
        return Opened(self._model.provider, batcher.at_once, batcher.max_images)

    def take_bundle(self, file: int) -> Opened | None:
        """Open the bundle that is pickled in a file, and use its model."""
        with os.fdopen(file, "rb", closefd=False) as content:
            bundle: Bundle = pickle.load(content)  # noqa: S301 - of a process of this server
        return self.open(bundle.embedder_sha256, bundle)

    def warm(self) -> int:
        """Prepare to embed. Returns the number of images that a batch may have."""
        self._networks.warm(self.model.embedder_sha256)
        return self.model.batcher.max_images

    def take_memory(self, images: int, file: int) -> None:
        """Use this memory for batches of at most so many images."""
        manifest = self.model.bundle.manifest
        self._memory = BatchMemory(file, images, manifest.preprocessing.image_size, manifest.embedding_size)

    def embed(self, count: int) -> None:
        """Embed the first images in memory, together with those of other connections.

        Raises:
            ServiceError: as `Job.wait`.
        """
        job = Job(count, self._settings, finite=False)
        with self._gone.calling(job.cancel), self.model.batcher.embedding(job, self._memory.images[:count]):
            self._memory.embeddings[:count] = job.wait()[:, 0]

    def leave(self) -> None:
        """Stop to use the model."""
        if self._model is not None:
            self._networks.give_back(self._model.embedder_sha256)
