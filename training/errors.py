"""Errors of the trainer."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


class CorrectableError(Exception):
    """An error that the person who gave the command can correct; the message says how."""


class BackboneError(CorrectableError, ValueError):
    """A network that cannot be built, or input that it does not take."""


class CheckpointError(CorrectableError, ValueError):
    """A run that cannot be resumed, measured or exported."""


class DivergedError(CorrectableError, RuntimeError):
    """Training whose numbers are no longer finite."""

    def __init__(self) -> None:
        super().__init__(
            "training diverged: losses or embeddings are NaN or infinite. Lower the learning rate: pretraining.lr if "
            "it was pretraining, optimiser.lr if it was the episodes"
        )


class ExportError(CorrectableError, RuntimeError):
    """A bundle cannot be made from a run, or the exported graph computes other embeddings."""


class WriteError(CorrectableError, RuntimeError):
    """A file or folder cannot be written, as on a full disk."""


@contextmanager
def writing(path: Path) -> Generator[None, None, None]:
    """Name what was being written in errors of the operating system; that of a full disk does not.

    Raises:
        WriteError: the block failed with such an error.
    """
    try:
        yield
    except OSError as error:
        raise WriteError(f"{path} cannot be written: {error.strerror or error}") from error
