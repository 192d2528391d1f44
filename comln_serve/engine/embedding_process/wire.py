"""What a process that serves and the one that embeds say to each other, and the memory that both see.

Messages are pickled, each in one packet of a Unix socket. Only processes of this server can open it: its folder is
theirs alone. A connection belongs to one model:

    Open -> Opened, or None if the bundle is not known yet: then TakeBundle, with the bundle in a file -> Opened
    Warm -> number of images that a batch may have
    TakeMemory, with the memory of a `BatchMemory` -> None
    Embed, again and again -> None, once the embeddings are in that memory

An exception that is answered is raised where the answer is awaited.
"""

import mmap
import os
import pickle
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

_LARGEST = 2**16
_ALIGNED = 64


@dataclass(frozen=True)
class Open:
    """Use the model with this `embedder_sha256` from now on."""

    embedder_sha256: str


@dataclass(frozen=True)
class TakeBundle:
    """Open this bundle and use its model; a file with the pickled bundle comes with it."""


@dataclass(frozen=True)
class Opened:
    """The model is open.

    Attributes:
        provider: what its backbone runs on.
        batches: how many it embeds at the same time.
        max_images: images in one batch; `Warm` may lower it.
    """

    provider: Literal["cuda", "cpu"]
    batches: int
    max_images: int


@dataclass(frozen=True)
class Warm:
    """Prepare to embed."""


@dataclass(frozen=True)
class TakeMemory:
    """Use the memory that comes with it for batches of at most so many images."""

    images: int


@dataclass(frozen=True)
class Embed:
    """Embed the first `count` images in memory."""

    count: int


Message = Open | TakeBundle | Warm | TakeMemory | Embed


class BatchMemory:
    """A batch in memory that two processes share.

    Attributes:
        images: (n, S, S, 3) uint8.
        embeddings: (n, d) float32.
    """

    images: NDArray[np.uint8]
    embeddings: NDArray[np.float32]

    def __init__(self, file: int, images: int, size: int, width: int) -> None:
        """Map the file; it may be closed afterwards.

        Args:
            file: descriptor of a file of `length` bytes.
            images: n.
            size, width: S and d.
        """
        memory = mmap.mmap(file, self.length(images, size, width))
        pixels = np.frombuffer(memory, np.uint8, images * size * size * 3)
        numbers = np.frombuffer(memory, np.float32, images * width, _embeddings_at(images, size))
        self.images = pixels.reshape(images, size, size, 3)
        self.embeddings = numbers.reshape(images, width)

    @staticmethod
    def length(images: int, size: int, width: int) -> int:
        """Bytes of such a file."""
        return _embeddings_at(images, size) + 4 * images * width


def _embeddings_at(images: int, size: int) -> int:
    return -(-images * size * size * 3 // _ALIGNED) * _ALIGNED


@contextmanager
def memory_file(length: int) -> Generator[int, None, None]:
    """A file of zeros in memory, by its descriptor. It exists until no process has it open or mapped."""
    file = os.memfd_create("comln-serve")
    try:
        os.truncate(file, length)
        yield file
    finally:
        os.close(file)


def new_socket() -> socket.socket:
    """A Unix socket that keeps the bounds of messages."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(connection: socket.socket, message: object, files: Sequence[int] = ()) -> None:
    """Send a message, and files by their descriptors.

    Raises:
        OSError: the other process has gone.
    """
    socket.send_fds(connection, [pickle.dumps(message)], files)


@contextmanager
def receive(connection: socket.socket) -> Generator[tuple[Any, list[int]], None, None]:
    """Wait for a message. Yields it, and the descriptors that came with it, which are closed after the block.

    Raises:
        OSError: the other process has gone.
    """
    data, files, _, _ = socket.recv_fds(connection, _LARGEST, 1)
    try:
        if not data:
            raise ConnectionResetError("the other process has gone")
        yield pickle.loads(data), files  # noqa: S301 - of a process of this server
    finally:
        for file in files:
            os.close(file)


def ask(connection: socket.socket, message: Message, files: Sequence[int] = ()) -> Any:
    """Send a message and return its answer.

    Raises:
        OSError: the other process has gone.
        Exception: the one that it answered.
    """
    send(connection, message, files)
    with receive(connection) as (answer, _):
        if isinstance(answer, Exception):
            raise answer
        return answer
