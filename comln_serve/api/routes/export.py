"""`GET /classifiers/{ref}/export`: a classifier as a file."""

import re
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from comln_serve.api.authentication import USING, needs, tenant_of
from comln_serve.api.errors import error_responses
from comln_serve.api.routes.shared import ONE_CLASSIFIER_ERRORS, Ref
from comln_serve.api.work import engine_of, work
from comln_serve.engine.engine import Engine
from comln_serve.errors import ErrorCode
from comln_serve.export.head_file import head_file

router = APIRouter()

# Each export holds a few copies of its backbone in memory while its file is made.
MOST_EXPORTS = 4

_MEDIA_TYPE = "application/octet-stream"

Format = Literal["onnx", "safetensors"]


@router.get(
    "/classifiers/{ref}/export",
    tags=["classifiers"],
    summary="Download a classifier as ONNX or safetensors",
    response_class=Response,
    responses={
        **error_responses(
            *ONE_CLASSIFIER_ERRORS, ErrorCode.MODEL_CHANGED, ErrorCode.CANNOT_EXPORT, ErrorCode.OVERLOADED
        ),
        200: {"content": {_MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}},
    },
)
@needs(*USING)
async def export(
    request: Request,
    ref: Ref,
    format: Annotated[  # noqa: A002
        Format, Query(description="onnx: images in, probabilities out. safetensors: the last layer only.")
    ] = "onnx",
) -> Response:
    """See docs/export.md for the files' contents and how to run them."""
    engine = engine_of(request)
    tenant = tenant_of(request)
    request.app.state.held.check()  # a file counts there until its client has read it
    with request.app.state.exports.admit():
        name, content = await work(request, lambda _cancellation: _file(engine, ref, tenant, format))
    return Response(content, media_type=_MEDIA_TYPE, headers={"Content-Disposition": f'attachment; filename="{name}"'})


def _file(engine: Engine, reference: str, tenant: str, kind: Format) -> tuple[str, bytes]:
    """The file's name and its bytes."""
    classifier = engine.classifiers.find(reference, tenant)
    bundle = engine.models.of(classifier).bundle
    if kind == "onnx":
        # Imported on first use, as the import takes a third of a second.
        from comln_serve.export.onnx_file import onnx_file  # noqa: PLC0415

        content = onnx_file(classifier, bundle)
    else:
        content = head_file(classifier, bundle)
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", classifier.name or classifier.id)
    return f"{stem}.{kind}", content
