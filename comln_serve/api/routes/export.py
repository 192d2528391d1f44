"""A classifier as a file, `GET /classifiers/{ref}/export`, and one from a file, `POST /classifiers`."""

import re
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from comln_serve.api import schemas
from comln_serve.api.authentication import USING, needs, tenant_of
from comln_serve.api.errors import error_responses
from comln_serve.api.receive.bodies import BYTES, read_support_file
from comln_serve.api.receive.requests import ClassifierName
from comln_serve.api.routes.shared import (
    CHANGE_WITHOUT_IMAGES_ERRORS,
    ONE_CLASSIFIER_ERRORS,
    KeyHeader,
    Ref,
    begin_to_adapt,
    make,
)
from comln_serve.api.work import engine_of, work
from comln_serve.bundle import Bundle
from comln_serve.domain.classifier import Classifier
from comln_serve.engine.engine import Engine, NewClassifier
from comln_serve.errors import ErrorCode
from comln_serve.export.head_file import head_file
from comln_serve.export.support_file import write_support
from comln_serve.security import Scope

router = APIRouter()

# Each export holds a few copies of its backbone in memory while its file is made.
MOST_EXPORTS = 4

_BINARY = {"type": "string", "format": "binary"}

Format = Literal["onnx", "safetensors", "support"]


@router.get(
    "/classifiers/{ref}/export",
    tags=["classifiers"],
    summary="Download a classifier, or its support set, as a file",
    response_class=Response,
    responses={
        **error_responses(
            *ONE_CLASSIFIER_ERRORS, ErrorCode.MODEL_CHANGED, ErrorCode.CANNOT_EXPORT, ErrorCode.OVERLOADED
        ),
        200: {"content": {BYTES: {"schema": _BINARY}}},
    },
)
@needs(*USING)
async def export(
    request: Request,
    ref: Ref,
    format: Annotated[  # noqa: A002
        Format,
        Query(
            description="onnx: images in, probabilities out. safetensors: the last layer only. support: embeddings and "
            "labels of its examples, from which POST /classifiers makes the classifier on another server."
        ),
    ] = "onnx",
) -> Response:
    """See docs/export.md for the files' contents and how to run them."""
    engine = engine_of(request)
    tenant = tenant_of(request)
    request.app.state.held.check()  # a file counts there until its client has read it
    with request.app.state.exports.admit():
        name, content = await work(request, lambda _cancellation: _file(engine, ref, tenant, format))
    return Response(content, media_type=BYTES, headers={"Content-Disposition": f'attachment; filename="{name}"'})


@router.post(
    "/classifiers",
    status_code=201,
    response_model=schemas.AdaptResponse,
    tags=["classifiers"],
    summary="Make a classifier from an exported support set",
    responses=error_responses(*CHANGE_WITHOUT_IMAGES_ERRORS),
    openapi_extra={"requestBody": {"required": True, "content": {BYTES: {"schema": _BINARY}}}},
)
@needs(Scope.ADAPT)
async def import_classifier(
    request: Request,
    name: Annotated[ClassifierName | None, Query()] = None,
    promote: Annotated[
        bool, Query(description="Let the name stand for this version. It always stands for its first version.")
    ] = True,
    key: KeyHeader = None,
) -> Response:
    """The body is a file of `GET /classifiers/{ref}/export?format=support`, of this server or another that serves the
    same bundle. Name, horizon and metadata are the file's, but for a name in the query. The bundle's present head is
    adapted, so the classifier is the one that was exported if the heads are the same.
    """
    engine = begin_to_adapt(request)
    sent = await read_support_file(request, engine.settings)
    options = sent.options
    new = NewClassifier(
        model=options.model,
        name=name or options.name,
        horizon=options.horizon,
        promote=promote,
        metadata=options.metadata or {},
    )
    return await make(
        request,
        lambda caller: engine.adapt_to_embeddings(sent.support, sent.embedder_sha256, new, sent.digest, caller),
        key=key,
        status=201,
    )


def _file(engine: Engine, reference: str, tenant: str, kind: Format) -> tuple[str, bytes]:
    """The file's name and its bytes."""
    if kind == "support":
        classifier, support = engine.classifiers.of(tenant).support(reference)
        content = write_support(classifier, support)
    else:
        classifier = engine.classifiers.find(reference, tenant)
        content = _of_weights(classifier, engine.models.of(classifier).bundle, kind)
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", classifier.name or classifier.id)
    return f"{stem}.{kind}", content


def _of_weights(classifier: Classifier, bundle: Bundle, kind: Literal["onnx", "safetensors"]) -> bytes:
    if kind == "safetensors":
        return head_file(classifier, bundle)
    # Imported on first use, as the import takes a third of a second.
    from comln_serve.export.onnx_file import onnx_file  # noqa: PLC0415

    return onnx_file(classifier, bundle)
