"""`GET /models`."""

from fastapi import APIRouter, Request

from comln_serve.api import schemas
from comln_serve.api.authentication import READING, needs
from comln_serve.api.work import engine_of
from comln_serve.engine.model import Model

router = APIRouter()


@router.get("/models", tags=["models"], summary="List the models that are served")
@needs(*READING)
async def models(request: Request) -> schemas.ModelList:
    engine = engine_of(request)
    return schemas.ModelList(
        models=[_model_info(model, default=name == engine.default_model) for name, model in engine.models.items()]
    )


def _model_info(model: Model, *, default: bool) -> schemas.ModelInfo:
    manifest = model.bundle.manifest
    exponents = manifest.head.exponents
    return schemas.ModelInfo(
        name=model.name,
        default=default,
        description=manifest.description,
        ways=manifest.head.ways,
        start=manifest.head.start,
        horizon=manifest.head.horizon,
        horizon_rule=manifest.head.horizon_rule,
        whitening=manifest.head.whitening,
        horizon_exponents=exponents and schemas.HorizonLaw(**exponents.model_dump()),
        image_size=manifest.preprocessing.image_size,
        embedding_size=manifest.embedding_size,
        accuracy=[
            schemas.AccuracyInfo(**entry.model_dump(include=set(schemas.AccuracyInfo.model_fields)))
            for entry in manifest.accuracy
        ],
        calibration=manifest.calibration
        and schemas.CalibrationInfo(
            split=manifest.calibration.split,
            episodes=manifest.calibration.episodes,
            tasks=list(manifest.calibration.tasks),
        ),
        provider=model.provider,
    )
