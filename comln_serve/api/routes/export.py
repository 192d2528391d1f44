"""Files of classifiers: `GET /classifiers/{ref}/export`, and `GET /classifiers/{ref}/support`, from which `POST
/classifiers` makes one.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from comln_serve.api import schemas
from comln_serve.api.authentication import adapts, tenant_of, uses
from comln_serve.api.document.openapi import header
from comln_serve.api.errors import error_responses
from comln_serve.api.receive.bodies import BYTES, read_support_file
from comln_serve.api.receive.requests import ClassifierName
from comln_serve.api.routes.shared import CHANGE_WITHOUT_IMAGES_ERRORS, ONE_CLASSIFIER_ERRORS, KeyHeader, Ref
from comln_serve.api.work import begin, engine_of, make, work
from comln_serve.domain.classifier import Classifier
from comln_serve.engine.engine import Engine, NewClassifier
from comln_serve.errors import ErrorCode
from comln_serve.export.head_file import head_file
from comln_serve.export.support_file import write_support

router = APIRouter(tags=["classifiers"])

# Each export holds a few copies of its backbone, or of its embeddings, in memory while its file is made: of 5000
# examples of 4800 numbers 290 MB.
MOST_EXPORTS = 2

_BINARY = {"type": "string", "format": "binary"}
_FILE: dict[str, Any] = {
    "content": {BYTES: {"schema": _BINARY}},
    "headers": {"Content-Disposition": header("Has a name for the file.", "string")},
}

Format = Literal["onnx", "safetensors"]


@router.get(
    "/classifiers/{ref}/export",
    summary="Download a classifier as ONNX or safetensors",
    response_class=Response,
    responses={**error_responses(*ONE_CLASSIFIER_ERRORS, ErrorCode.MODEL_CHANGED, ErrorCode.CANNOT_EXPORT), 200: _FILE},
)
@uses
async def export_classifier(
    request: Request,
    ref: Ref,
    format: Annotated[  # noqa: A002
        Format, Query(description="onnx: images in, probabilities out. safetensors: the last layer only.")
    ] = "onnx",
) -> Response:
    """See docs/export.md for the files' contents and how to run them."""
    engine, tenant = engine_of(request), tenant_of(request)
    return await _file(request, format, lambda: _weights(engine, ref, tenant, format))


@router.get(
    "/classifiers/{ref}/support",
    summary="Download a classifier's support set",
    response_class=Response,
    responses={**error_responses(*ONE_CLASSIFIER_ERRORS), 200: _FILE},
)
@adapts
async def export_support(request: Request, ref: Ref) -> Response:
    """Embeddings and labels of its examples, from which `POST /classifiers` makes the classifier on another server. See
    docs/export.md for the file's content.
    """
    stored = engine_of(request).classifiers.of(tenant_of(request))

    def written() -> tuple[Classifier, bytes]:
        classifier, support = stored.support(ref)
        return classifier, write_support(classifier, support)

    return await _file(request, "support", written)


@router.post(
    "/classifiers",
    status_code=201,
    response_model=schemas.AdaptResponse,
    summary="Make a classifier from an exported support set",
    responses=error_responses(*CHANGE_WITHOUT_IMAGES_ERRORS),
    openapi_extra={"requestBody": {"required": True, "content": {BYTES: {"schema": _BINARY}}}},
)
@adapts
async def import_classifier(
    request: Request,
    name: Annotated[ClassifierName | None, Query()] = None,
    promote: Annotated[
        bool, Query(description="Let the name stand for this version. It always stands for its first version.")
    ] = True,
    key: KeyHeader = None,
) -> Response:
    """The body is a file of `GET /classifiers/{ref}/support`, of this server or another that serves the same bundle.
    Name, horizon and metadata are the file's, but for a name in the query. The bundle's present head is adapted, so the
    classifier is the one that was exported if the heads are the same.
    """
    engine = begin(request, "adapt")
    sent = await read_support_file(request)
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
    )


async def _file(request: Request, kind: str, write: Callable[[], tuple[Classifier, bytes]]) -> Response:
    """A file named after its classifier, few made at a time."""
    request.app.state.held.check(tenant_of(request))  # a file counts there until its client has read it
    with request.app.state.exports.admit(tenant=tenant_of(request)):
        classifier, content = await work(request, write)
    name = re.sub(r"[^A-Za-z0-9._-]", "_", classifier.name or classifier.id)
    headers = {"Content-Disposition": f'attachment; filename="{name}.{kind}"'}
    return Response(content, media_type=BYTES, headers=headers)


def _weights(engine: Engine, reference: str, tenant: str, kind: Format) -> tuple[Classifier, bytes]:
    classifier = engine.classifiers.find(reference, tenant)
    bundle = engine.models.of(classifier).bundle
    if kind == "safetensors":
        return classifier, head_file(classifier, bundle)
    # Imported on first use, as the import takes a third of a second.
    from comln_serve.export.onnx_file import onnx_file  # noqa: PLC0415

    return classifier, onnx_file(classifier, bundle)
