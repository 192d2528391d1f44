"""`GET /limits`, `GET /models` and `POST /models/reload`."""

from fastapi import APIRouter, Request

from comln_serve.api import schemas
from comln_serve.api.authentication import USING, needs
from comln_serve.api.errors import error_responses
from comln_serve.api.receive.limits import limits_of
from comln_serve.api.routes.shared import change
from comln_serve.api.work import engine_of
from comln_serve.engine.models import Model
from comln_serve.engine.served import ModelsReloaded
from comln_serve.errors import ErrorCode
from comln_serve.security.keys import Scope

router = APIRouter()


@router.get("/limits", tags=["models"], summary="What a request may have")
@needs(*USING)
async def get_limits(request: Request) -> schemas.Limits:
    """What a program has to know to send as much as it may. A request over a limit is answered with an error that names
    it.
    """
    engine = engine_of(request)
    return limits_of(engine.settings, engine.formats, request.state.requests_per_minute)


@router.get("/models", tags=["models"], summary="List the models that are served")
@needs(*USING)
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
@needs(Scope.ADMIN)
async def reload_models(request: Request) -> ModelsReloaded:
    """Running requests finish on the models they began with. If a bundle cannot be used, nothing is changed."""
    reloaded = await change(request, engine_of(request).reload)
    request.app.state.on_reload()
    return reloaded


def _model_info(model: Model, *, default: bool) -> schemas.ModelInfo:
    manifest, head = model.bundle.manifest, model.bundle.manifest.head
    calibration = manifest.calibration
    return schemas.ModelInfo(
        name=model.name,
        default=default,
        description=manifest.description,
        licence=manifest.licence,
        ways=head.ways,
        start=head.start,
        horizon=head.horizon,
        horizon_rule=head.horizon_rule,
        whitening=head.whitening,
        horizon_exponents=head.exponents,
        head_sha256=model.bundle.head_sha256,
        embedder_sha256=model.embedder_sha256,
        image_size=manifest.preprocessing.image_size,
        embedding_size=manifest.embedding_size,
        accuracy=[schemas.AccuracyInfo.model_validate(entry) for entry in manifest.accuracy],
        calibration=calibration and schemas.CalibrationInfo.model_validate(calibration),
        provider=model.provider,
    )
