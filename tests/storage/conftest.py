"""Stores on empty databases, of either kind."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from comln_serve.storage import Store, TenantStore


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with closing(Store(database_url)) as store:
        yield store


@pytest.fixture
def mine(store: Store) -> TenantStore:
    """What one tenant has of the store."""
    return store.for_tenant("")
