"""Stores classifiers and API keys in one database, SQLite or PostgreSQL."""

from comln_serve.storage.classifiers import ChangedError, Check, Resolved, TenantStore
from comln_serve.storage.database import sqlite_file
from comln_serve.storage.editing import Edit
from comln_serve.storage.idempotency import IdempotencyKey, KeyTakenError
from comln_serve.storage.keys import KeyStore
from comln_serve.storage.store import Store, utc_now

__all__ = [
    "ChangedError",
    "Check",
    "Edit",
    "IdempotencyKey",
    "KeyStore",
    "KeyTakenError",
    "Resolved",
    "Store",
    "TenantStore",
    "sqlite_file",
    "utc_now",
]
