"""Stores classifiers and API keys in one database, SQLite or PostgreSQL."""

from comln_serve.storage.classifiers import ChangedError, Resolved, TenantStore
from comln_serve.storage.database import sqlite_file
from comln_serve.storage.editing import Edit
from comln_serve.storage.idempotency import IdempotencyKey, KeyTakenError
from comln_serve.storage.keys import KeyStore
from comln_serve.storage.store import Store, utc_now

__all__ = [
    "ChangedError",
    "Edit",
    "IdempotencyKey",
    "KeyStore",
    "KeyTakenError",
    "Resolved",
    "Store",
    "TenantStore",
    "open_store",
    "sqlite_file",
    "utc_now",
]


def open_store(url: str) -> Store:
    """Open the store at a database URL, `sqlite:///FILE` or `postgresql://...`.

    Raises:
        StartupError: the URL has another form, or the database cannot be used.
    """
    return Store(url)
