"""The routes under `/v2`. A model's name is a classifier's id or name."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from comln_serve import __version__
from comln_serve.api.authentication import public, tenant_of, uses
from comln_serve.api.context import OPEN_INFERENCE
from comln_serve.api.document.openapi import openapi_body
from comln_serve.api.errors import error_responses
from comln_serve.api.open_inference.requests import IMAGE, LABEL, PROBS, read_inference
from comln_serve.api.open_inference.responses import inference_response
from comln_serve.api.open_inference.schemas import (
    InferenceRequest,
    InferenceResponse,
    ModelMetadata,
    ModelReady,
    ProtocolError,
    ServerLive,
    ServerMetadata,
    ServerReady,
    TensorMetadata,
)
from comln_serve.api.routes import operations
from comln_serve.api.routes.shared import BODY_ERRORS, ONE_CLASSIFIER_ERRORS, WAITING_ERRORS
from comln_serve.api.work import begin, classify, engine_of, read
from comln_serve.domain.classifier import Classifier
from comln_serve.errors import ErrorCode

router = APIRouter(prefix=OPEN_INFERENCE, tags=["Open Inference Protocol"])

_BINARY = "application/octet-stream"
_ONE_MODEL = (*ONE_CLASSIFIER_ERRORS, ErrorCode.MODEL_CHANGED)

_errors = partial(error_responses, model=ProtocolError)


@router.get("", summary="What this server is")
@uses
async def server() -> ServerMetadata:
    extensions = ["binary_tensor_data", "classification"]
    return ServerMetadata(name="comln-serve", version=__version__, extensions=extensions)


@router.get("/health/live", summary="The process answers")
@public
async def live() -> ServerLive:
    return ServerLive(live=True)


@router.get(
    "/health/ready", summary="Models are warmed and the store can be reached", responses=_errors(*WAITING_ERRORS)
)
@public
async def ready(request: Request) -> ServerReady:
    await operations.ready(request)
    return ServerReady(ready=True)


@router.get("/models/{model}", summary="Inputs and outputs of a classifier", responses=_errors(*_ONE_MODEL))
@router.get(
    "/models/{model}/versions/{version}",
    summary="Inputs and outputs of a version of a classifier",
    responses=_errors(*_ONE_MODEL),
)
@uses
async def metadata(request: Request, model: str, version: str | None = None) -> ModelMetadata:
    classifier = await read(request, lambda: _find(request, model, version))
    return ModelMetadata(
        name=model,
        platform="comln-serve",
        inputs=[TensorMetadata(name=IMAGE, datatype="BYTES", shape=[-1])],
        outputs=[
            TensorMetadata(name=PROBS, datatype="FP32", shape=[-1, len(classifier.labels)]),
            TensorMetadata(name=LABEL, datatype="BYTES", shape=[-1]),
        ],
    )


@router.get("/models/{model}/ready", summary="A classifier can be used", responses=_errors(*_ONE_MODEL))
@router.get(
    "/models/{model}/versions/{version}/ready",
    summary="A version of a classifier can be used",
    responses=_errors(*_ONE_MODEL),
)
@uses
async def model_ready(request: Request, model: str, version: str | None = None) -> ModelReady:
    await operations.ready(request)
    await read(request, lambda: _find(request, model, version))
    return ModelReady(name=model, ready=True)


_INFER: dict[str, Any] = {
    "response_model": None,
    "responses": {
        **_errors(*BODY_ERRORS, ErrorCode.CLASSIFIER_NOT_FOUND, ErrorCode.MODEL_CHANGED),
        200: {"model": InferenceResponse, "content": {_BINARY: {"schema": {"type": "string", "format": "binary"}}}},
    },
    "openapi_extra": openapi_body(InferenceRequest),
}


@router.post("/models/{model}/infer", summary="Classify images", **_INFER)
@router.post(
    "/models/{model}/versions/{version}/infer", summary="Classify images with a version of a classifier", **_INFER
)
@uses
async def infer(request: Request, model: str, version: str | None = None) -> Response:
    """Images as JSON strings, or as binary tensors behind the JSON; see docs/open-inference.md."""
    engine = begin(request, "predict")
    inference = await read_inference(request, engine.settings)
    return await classify(
        request,
        len(inference.images),
        lambda caller: engine.predict(inference.images, _reference(model, version), caller),
        lambda predicted: inference_response(inference, predicted, model, version),
    )


def _find(request: Request, model: str, version: str | None) -> Classifier:
    """Find the classifier. Raises ServiceError if it or its model cannot be used."""
    engine = engine_of(request)
    classifier = engine.classifiers.find(_reference(model, version), tenant_of(request))
    engine.models.of(classifier)
    return classifier


def _reference(model: str, version: str | None) -> str:
    """The engine's reference for the classifier."""
    return model if version is None else f"{model}@{version}"
