"""Where classifiers are kept."""

from pathlib import Path

from comln_serve.errors import StartupError
from comln_serve.storage.base import ClassifierStore
from comln_serve.storage.sqlite import SqliteStore

__all__ = ["ClassifierStore", "SqliteStore", "open_store"]

_SQLITE = "sqlite:///"


def open_store(url: str) -> ClassifierStore:
    """The store at a database URL, `sqlite:///FILE`.

    Raises:
        StartupError: another kind of URL, or a store that cannot be opened.
    """
    path = url.removeprefix(_SQLITE)
    if path == url or not path:
        raise StartupError(f"database URL must read {_SQLITE}FILE, got {url!r}")
    return SqliteStore(Path(path))
