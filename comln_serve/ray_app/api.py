"""The replica that answers HTTP: the plain server's application over embedding replicas.

It holds no state but caches, so any replica can answer any request.
"""

import asyncio
from typing import Any

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle
from threadpoolctl import threadpool_limits

from comln_serve.api.app import create_app
from comln_serve.api.browsers import AllowedHosts
from comln_serve.configuration.settings import Settings
from comln_serve.engine.bundles import load_bundles
from comln_serve.engine.engine import Engine
from comln_serve.errors import StartupError
from comln_serve.logs import configure_logs
from comln_serve.machine import freeze_garbage_collector, return_large_memory
from comln_serve.ray_app.remote_model import RemoteModel
from comln_serve.storage import Store


class Api:
    """An engine over embedding replicas, and the application around it."""

    async def __init__(self, settings: Settings, embedding: DeploymentHandle[Any]) -> None:
        """Warm the engine before Ray Serve sends requests. Waits for an embedding replica.

        Raises:
            StartupError: bundles, database or embedding replicas cannot be used.
        """
        configure_logs(settings.log_level, settings.log_format)
        threadpool_limits(1, "blas")
        return_large_memory()
        self._engine = await asyncio.to_thread(_ready_engine, settings, embedding)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """The application that `serve.ingress()` serves."""
        # Unless host names are set, Ray Serve's proxy decides which to accept.
        names = self._engine.settings.host_names
        app = create_app(self._engine, hosts=AllowedHosts(names) if names else None)
        app.state.sends_request_id = False  # Ray Serve adds its own
        return app

    def check_health(self) -> None:
        """Raise an error if the engine is closed, so that Ray Serve replaces this replica.

        Passes without embedding replicas: replacing this replica would not bring them back.
        `/health/ready` reports them missing.
        """
        if not self._engine.ready:
            raise RuntimeError("the engine has been closed")


def _ready_engine(settings: Settings, embedding: DeploymentHandle[Any]) -> Engine:
    models = {bundle.name: RemoteModel(bundle, settings, embedding) for bundle in load_bundles(settings)}
    engine = Engine(settings, models, Store(settings.database_url))
    engine.warm()
    if engine.failure is not None:
        engine.close()
        raise StartupError(str(engine.failure)) from engine.failure
    freeze_garbage_collector()
    return engine
