"""The HTTP routes: read, call the engine, write. No decisions are made here."""

import asyncio
from collections.abc import Callable
from typing import Annotated, TypeVar

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response

from comln_serve import __version__
from comln_serve.api import schemas
from comln_serve.api.bodies import read_adapt, read_predict
from comln_serve.api.context import current_record
from comln_serve.api.errors import error_responses
from comln_serve.api.metrics import CONTENT_TYPE
from comln_serve.api.openapi import openapi_body
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.engine import Engine, Predicted
from comln_serve.engine.model import Model
from comln_serve.errors import ErrorCode, ServiceError

router = APIRouter()

_Result = TypeVar("_Result")

_BODY_ERRORS = (
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_IMAGE,
    ErrorCode.IMAGE_TOO_LARGE,
    ErrorCode.TOO_MANY_IMAGES,
    ErrorCode.BODY_TOO_LARGE,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    ErrorCode.OVERLOADED,
    ErrorCode.QUEUE_TIMEOUT,
    ErrorCode.INFERENCE_TIMEOUT,
    ErrorCode.STORAGE_UNAVAILABLE,
)
_ONE_CLASSIFIER_ERRORS = (
    ErrorCode.INVALID_REQUEST,  # FastAPI documents one wherever there is a parameter
    ErrorCode.CLASSIFIER_NOT_FOUND,
    ErrorCode.STORAGE_UNAVAILABLE,
)


def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


async def _work(request: Request, call: Callable[[Cancellation], _Result]) -> _Result:
    """Run an engine call on a thread of its own pool, so that light routes never wait for it.

    What is left of its work is dropped when the client leaves, and when the server gives the
    request up.
    """
    cancellation = Cancellation()
    watching = asyncio.create_task(_cancel_when_gone(request, cancellation))
    try:
        return await to_thread.run_sync(call, cancellation, limiter=request.app.state.work_threads)
    finally:
        watching.cancel()
        cancellation.cancel()


async def _cancel_when_gone(request: Request, cancellation: Cancellation) -> None:
    """The body has been read: what may still be received is that the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    cancellation.cancel()


async def _probe(request: Request, call: Callable[[], _Result]) -> _Result:
    """Run what operators poll on threads of its own, so that it never waits for requests."""
    return await to_thread.run_sync(call, limiter=request.app.state.probe_threads)


@router.post(
    "/adapt",
    status_code=201,
    tags=["adaptation"],
    summary="Make a classifier from a few labelled images",
    responses=error_responses(*_BODY_ERRORS, ErrorCode.MODEL_NOT_FOUND, ErrorCode.CANNOT_ADAPT),
    openapi_extra=openapi_body(schemas.AdaptRequest, ["images", "labels"]),
)
async def adapt(request: Request) -> schemas.AdaptResponse:
    """Send images with one label each, of two classes or more, as multipart form or JSON."""
    engine = _engine(request)
    record = current_record()
    record.operation = "adapt"
    with request.app.state.requests.admit():
        support, options = await read_adapt(request, engine.settings)
        record.images = len(support)
        adapted = await _work(
            request,
            lambda cancellation: engine.adapt(
                support,
                model=options.model,
                name=options.name,
                horizon=options.horizon,
                cancellation=cancellation,
            ),
        )
    record.model, record.stages_ms = adapted.classifier.model, adapted.timings_ms
    info = schemas.ClassifierInfo.of(adapted.classifier)
    return schemas.AdaptResponse(**info.model_dump(), timings_ms=adapted.timings_ms)


@router.post(
    "/predict",
    tags=["prediction"],
    summary="Classify images",
    responses=error_responses(
        *_BODY_ERRORS, ErrorCode.CLASSIFIER_NOT_FOUND, ErrorCode.MODEL_CHANGED
    ),
    openapi_extra=openapi_body(schemas.PredictRequest, ["images"]),
)
async def predict(request: Request) -> schemas.PredictResponse:
    """Send images and a classifier's id or name, as multipart form or JSON."""
    engine = _engine(request)
    record = current_record()
    record.operation = "predict"
    with request.app.state.requests.admit():
        images, options = await read_predict(request, engine.settings)
        record.images = len(images)

        def answer(cancellation: Cancellation) -> schemas.PredictResponse:
            predicted = engine.predict(images, options.classifier, cancellation=cancellation)
            record.model, record.stages_ms = predicted.classifier.model, predicted.timings_ms
            return schemas.PredictResponse(
                classifier=predicted.classifier.id,
                predictions=_predictions(predicted, options.top_k),
                timings_ms=predicted.timings_ms,
            )

        return await _work(request, answer)


@router.get("/models", tags=["models"], summary="List the models that are served")
async def models(request: Request) -> schemas.ModelList:
    engine = _engine(request)
    return schemas.ModelList(
        models=[
            _model_info(model, default=name == engine.default_model)
            for name, model in engine.models.items()
        ]
    )


@router.get(
    "/classifiers",
    tags=["classifiers"],
    summary="List classifiers, newest first",
    responses=error_responses(ErrorCode.INVALID_REQUEST, ErrorCode.STORAGE_UNAVAILABLE),
)
def classifiers(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[
        int | None, Query(ge=0, le=2**62, description="`next` of the page before.")
    ] = None,
) -> schemas.ClassifierPage:
    page, following = _engine(request).store.page(limit=limit, before=before)
    return schemas.ClassifierPage(
        classifiers=[schemas.ClassifierInfo.of(item) for item in page], next=following
    )


@router.get(
    "/classifiers/{id}",
    tags=["classifiers"],
    summary="Show a classifier, by id or name",
    responses=error_responses(*_ONE_CLASSIFIER_ERRORS),
)
def classifier(request: Request, id: str) -> schemas.ClassifierInfo:  # noqa: A002
    return schemas.ClassifierInfo.of(_engine(request).find_classifier(id))


@router.delete(
    "/classifiers/{id}",
    status_code=204,
    tags=["classifiers"],
    summary="Delete a classifier, by id or name",
    responses=error_responses(*_ONE_CLASSIFIER_ERRORS),
)
def delete_classifier(request: Request, id: str) -> Response:  # noqa: A002
    _engine(request).delete_classifier(id)
    return Response(status_code=204)


@router.get("/health/live", tags=["health"], summary="The process answers")
async def live() -> schemas.Live:
    return schemas.Live(status="live")


@router.get(
    "/health/ready",
    tags=["health"],
    summary="Models are warmed and the store can be reached",
    responses=error_responses(ErrorCode.NOT_READY, ErrorCode.STORAGE_UNAVAILABLE),
)
async def ready(request: Request) -> schemas.Ready:
    engine = _engine(request)
    if request.app.state.draining:
        raise ServiceError(ErrorCode.NOT_READY, "The server is stopping; use another.")
    if not engine.ready:
        raise ServiceError(
            ErrorCode.NOT_READY, "The server is starting or stopping; try again in a moment."
        )
    await _probe(request, engine.check_models)
    stored = await _probe(request, engine.store.count)
    return schemas.Ready(
        status="ready",
        version=__version__,
        provider={name: model.provider for name, model in engine.models.items()},
        classifiers=stored,
    )


@router.get(
    "/metrics",
    tags=["operation"],
    summary="Metrics in Prometheus' text format",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request) -> Response:
    text = await _probe(request, request.app.state.metrics.text)
    return Response(text, media_type=CONTENT_TYPE)


def _predictions(predicted: Predicted, top_k: int) -> list[schemas.Prediction]:
    labels = predicted.classifier.labels
    predictions = []
    for row in predicted.probabilities:
        top = [
            schemas.ClassProbability(label=labels[i], probability=float(row[i]))
            for i in (-row).argsort(kind="stable")[:top_k]
        ]
        predictions.append(
            schemas.Prediction(label=top[0].label, probability=top[0].probability, top=top)
        )
    return predictions


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
        horizon_exponents=exponents and schemas.HorizonLaw(**exponents.model_dump()),
        image_size=manifest.preprocessing.image_size,
        embedding_size=manifest.embedding_size,
        accuracy=[
            schemas.AccuracyInfo(**entry.model_dump(include=set(schemas.AccuracyInfo.model_fields)))
            for entry in manifest.accuracy
        ],
        provider=model.provider,
    )
