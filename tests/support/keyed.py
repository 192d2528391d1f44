"""A server that requires keys, and keys to it."""

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import RouteContext, iter_route_contexts
from fastapi.testclient import TestClient

from comln_serve.configuration.settings import Settings
from comln_serve.security.keys import Scope, make_key
from comln_serve.storage import Store, utc_now
from tests.support.engines import Serve

EVERYTHING = tuple(Scope)


def new_key(store: Store, tenant: str = "acme", *scopes: Scope, **more: Any) -> str:
    """The text of a key that is made now; with every scope if none is said."""
    key, text = make_key(tenant, scopes or EVERYTHING, now=utc_now(), **more)
    store.keys.add(key)
    return text


def bearer(text: str) -> dict[str, str]:
    """The headers of a request with a key."""
    return {"Authorization": f"Bearer {text}"}


def store_of(client: TestClient) -> Store:
    """The store behind a client of `keyed`."""
    store: Store = client.app.state.engine.store  # type: ignore[attr-defined]
    return store


def routes_of(app: FastAPI) -> list[RouteContext]:
    """Every route, those of included routers, too."""
    return list(iter_route_contexts(app.routes))


@pytest.fixture
def keyed_settings(settings: Settings, database_url: str) -> Settings:
    """The defaults with keys required, on a database of either kind."""
    return settings.model_copy(update={"require_keys": True, "database_url": database_url})


@pytest.fixture
def keyed(keyed_settings: Settings, serve: Serve) -> TestClient:
    """A client, without a key, of a server that requires one."""
    return serve(keyed_settings)
