"""What is served, its limits, health and metrics: for clients, orchestrators and monitoring."""

from anyio import to_thread
from fastapi import APIRouter, Request, Response

from comln_serve import __version__
from comln_serve.api import schemas
from comln_serve.api.authentication import operates, public, uses
from comln_serve.api.errors import error_responses
from comln_serve.api.observe.metrics import CONTENT_TYPE
from comln_serve.api.receive.limits import MOST_ANSWER_BYTES, json_limit
from comln_serve.api.receive.requests import MOST_LISTED
from comln_serve.api.routes.shared import WAITING_ERRORS
from comln_serve.api.work import change, engine_of
from comln_serve.domain.support import MIN_CLASSES
from comln_serve.engine.models import Model
from comln_serve.engine.served import ModelsReloaded
from comln_serve.errors import ErrorCode, ServiceError

router = APIRouter()


@router.get("/limits", tags=["models"], summary="What a request may have")
@uses
async def get_limits(request: Request) -> schemas.Limits:
    """What a program has to know to send as much as it may. A request over a limit is answered with an error that names
    it.
    """
    engine = engine_of(request)
    beside = {
        "image_formats": list(engine.formats),
        "max_json_bytes": json_limit(engine.settings),
        "max_answer_bytes": MOST_ANSWER_BYTES,
        "max_top_k": MOST_LISTED,
        "min_classes": MIN_CLASSES,
        "requests_per_minute": request.state.requests_per_minute,
    }
    return schemas.Limits.model_validate({**dict(engine.settings), **beside})


@router.get("/models", tags=["models"], summary="List the models that are served")
@uses
async def list_models(request: Request) -> schemas.ModelList:
    engine = engine_of(request)
    return schemas.ModelList(
        models=[_model_info(model, default=name == engine.models.default) for name, model in engine.models.items()]
    )


@router.post(
    "/models/reload",
    tags=["operation"],
    summary="Serve the bundles that the server's folder holds now",
    responses=error_responses(ErrorCode.CANNOT_RELOAD, ErrorCode.NOT_READY, ErrorCode.OVERLOADED),
)
@operates
async def reload_models(request: Request) -> ModelsReloaded:
    """Running requests finish on the models they began with. If a bundle cannot be used, nothing is changed."""
    reloaded = await change(request, engine_of(request).reload)
    request.app.state.on_reload()
    return reloaded


@router.get("/health/live", tags=["health"], summary="The process answers")
@public
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
async def ready(request: Request) -> schemas.Ready:
    engine = engine_of(request)
    if request.app.state.draining:
        raise ServiceError(ErrorCode.NOT_READY, "The server is stopping; use another.")
    if not engine.ready:
        raise ServiceError(ErrorCode.NOT_READY, "The server is starting or stopping; try again in a moment.")

    def stored() -> int:
        engine.check()
        return engine.store.count()

    count = await to_thread.run_sync(stored, limiter=request.app.state.probe_threads)
    return schemas.Ready(
        status="ready",
        version=__version__,
        provider={name: model.provider for name, model in engine.models.items()},
        classifiers=None if engine.settings.require_keys else count,
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
@operates
async def metrics(request: Request) -> Response:
    state = request.app.state
    text = await to_thread.run_sync(state.metrics.text, limiter=state.scrape_threads)
    return Response(text, media_type=CONTENT_TYPE)


def _model_info(model: Model, *, default: bool) -> schemas.ModelInfo:
    manifest, head = model.bundle.manifest, model.bundle.manifest.head
    beside = {
        "name": model.name,
        "default": default,
        "horizon_exponents": head.exponents,
        "head_sha256": model.bundle.head_sha256,
        "embedder_sha256": model.embedder_sha256,
        "image_size": manifest.preprocessing.image_size,
        "provider": model.provider,
    }
    return schemas.ModelInfo.model_validate({**dict(head), **dict(manifest), **beside})
