"""`POST /classifiers/{ref}/labels`."""

from fastapi import APIRouter, Request, Response

from comln_serve.api import schemas
from comln_serve.api.authentication import needs
from comln_serve.api.document.openapi import openapi_json
from comln_serve.api.errors import error_responses
from comln_serve.api.receive import requests
from comln_serve.api.receive.bodies import read_json_only
from comln_serve.api.receive.limits import check_labels
from comln_serve.api.routes.shared import CHANGE_BY_OPTIONS_ERRORS, KeyHeader, Ref, begin_to_adapt, make_change
from comln_serve.engine.adapting.changes import RenameClasses
from comln_serve.security import Scope

router = APIRouter(tags=["classifiers"])


@router.post(
    "/classifiers/{ref}/labels",
    status_code=201,
    response_model=schemas.AdaptResponse,
    summary="Give classes of a classifier other labels",
    responses=error_responses(*CHANGE_BY_OPTIONS_ERRORS),
    openapi_extra=openapi_json(requests.RenameRequest),
)
@needs(Scope.ADAPT)
async def rename_classes(request: Request, ref: Ref, key: KeyHeader = None) -> Response:
    """Its predictions stay the same, under the new labels. Only if classes get the same label they are merged, and the
    classifier is adapted again to its examples. A named classifier gets a new version; an unnamed one changes in place.
    """
    engine = begin_to_adapt(request)
    body = await read_json_only(request, engine.settings, requests.RenameRequest)
    check_labels(body.labels.values(), engine.settings)
    return await make_change(request, ref, RenameClasses(body.labels), promote=body.promote, key=key)
