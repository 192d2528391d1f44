"""Health probes and metrics, for orchestrators and monitoring."""

from anyio import to_thread
from fastapi import APIRouter, Request, Response

from comln_serve import __version__
from comln_serve.api import schemas
from comln_serve.api.authentication import needs, public
from comln_serve.api.errors import error_responses
from comln_serve.api.observe.metrics import CONTENT_TYPE
from comln_serve.api.receive.parameters import any_query
from comln_serve.api.routes.shared import WAITING_ERRORS
from comln_serve.api.work import engine_of, probe
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.security.keys import Scope

router = APIRouter()


@router.get("/health/live", tags=["health"], summary="The process answers")
@public
@any_query
async def live() -> schemas.Live:
    return schemas.Live(status="live")


@router.get(
    "/health/ready",
    tags=["health"],
    summary="Models are warmed and the store can be reached",
    response_model_exclude_none=True,
    responses=error_responses(*WAITING_ERRORS),
)
@public
@any_query
async def ready(request: Request) -> schemas.Ready:
    engine = engine_of(request)
    if request.app.state.draining:
        raise ServiceError(ErrorCode.NOT_READY, "The server is stopping; use another.")
    if not engine.ready:
        raise ServiceError(ErrorCode.NOT_READY, "The server is starting or stopping; try again in a moment.")
    await probe(request, engine.check)
    stored = await probe(request, engine.store.count)
    return schemas.Ready(
        status="ready",
        version=__version__,
        provider={name: model.provider for name, model in engine.models.items()},
        classifiers=None if engine.settings.require_keys else stored,
    )


@router.get(
    "/metrics",
    tags=["operation"],
    summary="Metrics in Prometheus' text format",
    response_class=Response,
    responses={
        **error_responses(ErrorCode.NOT_READY),
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
    },
)
@needs(Scope.ADMIN)
@any_query
async def metrics(request: Request) -> Response:
    state = request.app.state
    text = await to_thread.run_sync(state.metrics.text, limiter=state.scrape_threads)
    return Response(text, media_type=CONTENT_TYPE)
