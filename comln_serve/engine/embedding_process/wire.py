"""What a process that serves and the one that embeds say to each other, and the memory that both see.

A process that serves calls methods of the `User` that the other process has for its connection. Calls and answers are
pickled, each in one packet of a Unix socket. Only processes of this server can open it: its folder is theirs alone. A
connection belongs to one model:

    open(embedder_sha256) -> Opened, or None if the bundle is not known yet: then
    take_bundle(file), with the pickled bundle -> Opened
    warm() -> number of images that a batch may have
    take_memory(images, file), with the memory of a `BatchMemory`
    embed(count), again and again; then the embeddings are in that memory

An exception that is answered is raised where the answer is awaited.
"""

import mmap
import os
import pickle
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comln_serve.machine import RunsOn

_LARGEST = 2**16
_ALIGNED = 64


@dataclass(frozen=True)
class Opened:
    """The model is open.

    Attributes:
        provider: what its backbone runs on.
        batches: how many it embeds at the same time.
        max_images: images in one batch; `warm` may lower it.
    """

    provider: RunsOn
    batches: int
    max_images: int


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
    """Send a call or an answer, and files by their descriptors.

    Raises:
        OSError: the other process has gone, here and below.
    """
    socket.send_fds(connection, [pickle.dumps(message)], files)


@contextmanager
def receive(connection: socket.socket) -> Generator[tuple[Any, list[int]], None, None]:
    """Wait for a call or an answer. Yields it and the descriptors it came with, which are closed after the block."""
    data, files, _, _ = socket.recv_fds(connection, _LARGEST, 1)
    try:
        if not data:
            raise ConnectionResetError("the other process has gone")
        yield pickle.loads(data), files  # noqa: S301 - of a process of this server
    finally:
        for file in files:
            os.close(file)


def ask(connection: socket.socket, method: str, *arguments: object, file: int | None = None) -> Any:
    """Call a method in the other process, with a file as its last argument if one is given, and return its answer.

    Raises:
        Exception: the one that it answered.
    """
    send(connection, (method, *arguments), () if file is None else (file,))
    with receive(connection) as (answer, _):
        if isinstance(answer, Exception):
            raise answer
        return answer
