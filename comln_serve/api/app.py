"""The ASGI application around an engine."""

import asyncio
import math
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from anyio import CapacityLimiter
from fastapi import Depends, FastAPI
from starlette.concurrency import run_in_threadpool

from comln_serve import __version__
from comln_serve.api.authentication import Authentication
from comln_serve.api.browsers import AllowedHosts, BrowserGuard, Cors
from comln_serve.api.document.openapi import complete_document, operation_id
from comln_serve.api.document.pages import install_documentation
from comln_serve.api.errors import install_error_handlers
from comln_serve.api.observe.metrics import Metrics
from comln_serve.api.observe.observation import Observation, Rescue
from comln_serve.api.open_inference.routes import router as open_inference
from comln_serve.api.page import install_page
from comln_serve.api.receive.intake import Intake
from comln_serve.api.receive.pace import MOST_WAITING, Pace
from comln_serve.api.receive.parameters import check_parameters
from comln_serve.api.routes import ROUTERS
from comln_serve.api.routes.export import MOST_EXPORTS
from comln_serve.configuration.settings import Settings
from comln_serve.counts import Count
from comln_serve.engine.admission import Admission
from comln_serve.engine.engine import Engine
from comln_serve.engine.line import Line
from comln_serve.errors import StartupError

if TYPE_CHECKING:
    from comln_serve.api.observe.traces import Traces

# Requests that read classifiers, and that change them without adapting, at once.
_READ_AT_ONCE, _CHANGED_AT_ONCE = 2, 8

# Where the OpenTelemetry SDK itself looks for an endpoint.
_OTEL_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def create_app(
    engine: Engine,
    *,
    hosts: AllowedHosts | None = None,
    on_warm: Callable[[], None] = lambda: None,
    on_reload: Callable[[], None] = lambda: None,
) -> FastAPI:
    """Build an application that serves `engine`, warms it after start and closes it at the end.

    The server accepts connections while the engine warms, so that orchestrators can tell liveness
    from readiness; adapt and predict requests wait for it.

    Args:
        hosts: host names that the server answers under; default: any.
        on_warm: called once the engine is `ready`, or has set `failure` and never will be.
        on_reload: called after a request has reloaded the models.
    """

    def warm() -> None:
        engine.warm()
        on_warm()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None, None]:
        warming = asyncio.create_task(run_in_threadpool(warm))
        yield
        await warming
        await run_in_threadpool(engine.close)
        authentication.close()
        if traces is not None:
            await run_in_threadpool(traces.close)

    settings, shared, by_tenant = engine.settings, engine.shared, engine.settings.require_keys
    traces = open_traces(settings)
    authentication = Authentication(settings, engine.store.keys, shared.folder)
    app = FastAPI(
        title="comln-serve",
        version=__version__,
        summary="A classifier for new classes from a handful of labelled images.",
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        servers=[{"url": "/", "description": "The server that this document is from."}],
        lifespan=lifespan,
        # The key first: a client without one learns nothing of a route's parameters.
        dependencies=[Depends(authentication), Depends(check_parameters)],
        # Replaced by `Observation`, which records more. Left on, it costs time in each request.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        redirect_slashes=False,  # the 404 says more than an empty 307
        docs_url=None,  # loads scripts from a third party; see `documentation`
        redoc_url=None,
        generate_unique_id_function=operation_id,
    )
    app.state.engine = engine
    app.state.on_reload = on_reload
    app.state.draining = False  # set on the signal to stop
    app.state.sends_request_id = True  # False where what is in front adds the header
    # Separate thread pools, so that probes are answered while all other threads are busy.
    app.state.probe_threads = CapacityLimiter(4)
    app.state.scrape_threads = CapacityLimiter(2)  # metrics query GPU drivers and a database, which may hang
    app.state.threads = CapacityLimiter(math.inf)  # for calls of which something else limits the number
    app.state.parsing = Line()
    # Each list may take tens of megabytes, and each large report keeps the GIL from the event loop for a while.
    app.state.reading, app.state.changing = Line(_READ_AT_ONCE), Line(_CHANGED_AT_ONCE)
    app.state.requests = Admission(settings.max_pending_requests, Count.REQUESTS, shared, by_tenant=by_tenant)
    app.state.held = held = Admission(
        settings.max_pending_bytes, Count.BYTES, shared, largest=settings.max_body_bytes, by_tenant=by_tenant
    )
    app.state.pace = pace = Pace(max(MOST_WAITING, settings.max_pending_requests))
    app.state.exports = Admission(MOST_EXPORTS, Count.EXPORTS, shared, by_tenant=by_tenant)
    app.state.metrics = Metrics(engine)
    for router in (*ROUTERS, open_inference):
        app.include_router(router)
    install_error_handlers(app)
    complete_document(app, with_keys=settings.require_keys)
    install_documentation(app)
    install_page(app)
    # The middleware added last is outermost.
    app.add_middleware(Intake, held=held, pace=pace, max_seconds=settings.max_receive_seconds)
    app.add_middleware(Rescue)
    origins = list(filter(None, settings.cors_origins.split(",")))
    if origins:
        app.add_middleware(Cors, origins=origins)
    app.add_middleware(BrowserGuard, hosts=hosts or AllowedHosts(), origins=origins)
    app.add_middleware(Observation, metrics=app.state.metrics, traces=traces)
    return app


def open_traces(settings: Settings) -> "Traces | None":
    """Start tracing if it is configured; if not, OpenTelemetry is not imported.

    Raises:
        StartupError: tracing is configured, but OpenTelemetry is not installed.
    """
    if settings.otlp_endpoint is None and not any(map(os.environ.get, _OTEL_ENDPOINTS)):
        return None
    try:
        from comln_serve.api.observe.traces import Traces  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        raise StartupError(
            f"traces are configured, but {error.name} is not installed: pip install "
            '"comln-serve[otel]", or leave --otlp-endpoint and OTEL_EXPORTER_OTLP_ENDPOINT out'
        ) from error
    return Traces(settings.otlp_endpoint)
