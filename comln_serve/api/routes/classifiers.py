"""Routes that list, show, edit, delete, promote and roll back classifiers, and rename their classes."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import AfterValidator, Field

from comln_serve.api import schemas
from comln_serve.api.authentication import adapts, tenant_of, uses
from comln_serve.api.context import current_record
from comln_serve.api.document.openapi import openapi_body
from comln_serve.api.errors import error_responses
from comln_serve.api.receive.bodies import read_json_only
from comln_serve.api.receive.limits import MOST_ANSWER_BYTES, check_labels
from comln_serve.api.receive.requests import EditRequest, Name, RenameRequest
from comln_serve.api.routes.shared import (
    CHANGE_WITHOUT_IMAGES_ERRORS,
    ONE_CLASSIFIER_ERRORS,
    PLAIN_BODY_ERRORS,
    WAITING_ERRORS,
    KeyHeader,
    Ref,
)
from comln_serve.api.work import as_json, begin, change, engine_of, make, read
from comln_serve.domain.classifier import ClassifierRecord
from comln_serve.domain.reference import ID_PREFIX
from comln_serve.engine.adapting.changes import RenameClasses
from comln_serve.errors import ErrorCode
from comln_serve.storage import Edit, TenantStore

router = APIRouter(tags=["classifiers"])

# Classifiers read at once: each may have megabytes of labels.
_AT_ONCE = 50


def _an_id(text: str) -> str:
    if not text.startswith(ID_PREFIX):
        raise ValueError(f"must be the id of a classifier, {ID_PREFIX}...")
    return text


# `pattern` is for the document alone: Pydantic would report it as a regular expression.
_Id = Annotated[str, AfterValidator(_an_id), Field(json_schema_extra={"pattern": f"^{ID_PREFIX}"})]


@router.get(
    "/classifiers",
    response_model=schemas.ClassifierPage,
    summary="List classifiers, newest first",
    responses=error_responses(
        ErrorCode.INVALID_REQUEST, ErrorCode.OVERLOADED, ErrorCode.QUEUE_TIMEOUT, *WAITING_ERRORS
    ),
)
@uses
async def list_classifiers(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=0, le=2**62, description="`next` of the page before.")] = None,
    name: Annotated[Name | None, Query(description="Only versions of this name.")] = None,
    model: Annotated[
        str | None, Query(pattern=r"^[^\x00]+$", description="Only classifiers adapted on this model.")
    ] = None,
) -> Response:
    """A page has fewer classifiers than `limit` if they are very large together; `next` leads on."""
    stored = engine_of(request).classifiers.of(tenant_of(request))

    def listed() -> Response:
        written: list[bytes] = []  # one by one, as the classes of a thousand take far more memory as objects
        following, size = before, 0
        while len(written) < limit and size < MOST_ANSWER_BYTES:
            page, following = stored.page(
                limit=min(limit - len(written), _AT_ONCE), before=following, name=name, model=model
            )
            for record in page:
                written.append(schemas.ClassifierInfo.model_validate(record).model_dump_json().encode())
                size += len(written[-1])
            if following is None:
                break
        body = b'{"classifiers":[%b],"next":%b}' % (b",".join(written), json.dumps(following).encode())
        return Response(body, media_type="application/json")

    return await read(request, listed)


@router.get(
    "/classifiers/{ref}",
    response_model=schemas.ClassifierDetail,
    summary="Show a classifier, by id, name or name@version",
    responses=error_responses(*ONE_CLASSIFIER_ERRORS),
)
@uses
async def get_classifier(request: Request, ref: Ref) -> Response:
    stored = engine_of(request).classifiers.of(tenant_of(request))
    return await read(request, lambda: as_json(schemas.ClassifierDetail.model_validate(stored.describe(ref))))


@router.patch(
    "/classifiers/{ref}",
    response_model=schemas.ClassifierDetail,
    summary="Change name, metadata or time of expiry of a classifier",
    responses=error_responses(
        *ONE_CLASSIFIER_ERRORS, ErrorCode.NAME_TAKEN, ErrorCode.MODEL_CHANGED, *PLAIN_BODY_ERRORS
    ),
    openapi_extra=openapi_body(EditRequest),
)
@adapts
async def edit_classifier(request: Request, ref: Ref) -> Response:
    """Id, weights, report and examples stay; fields that are left out change nothing."""
    engine, tenant = engine_of(request), tenant_of(request)
    request.app.state.requests.check(tenant)
    body = await read_json_only(request, EditRequest)
    sent, seconds = body.model_fields_set, body.expires_in_seconds
    edit = Edit(
        name=body.name if "name" in sent else None,
        promote=body.promote,
        metadata=body.metadata if "metadata" in sent else None,
        expires_in=None if seconds is None else timedelta(seconds=seconds),
        keeps_expiry="expires_in_seconds" not in sent,
    )

    def edited() -> tuple[str, Response]:
        with engine.changing(tenant) as store:
            found = store.edit(ref, edit)
        return found.id, as_json(schemas.ClassifierDetail.model_validate(found))

    current_record().classifier, answer = await change(request, edited)
    return answer


@router.delete(
    "/classifiers/{ref}",
    status_code=204,
    summary="Delete a classifier, by id, name or name@version",
    responses=error_responses(*ONE_CLASSIFIER_ERRORS),
)
@adapts
async def delete_classifier(request: Request, ref: Ref) -> Response:
    """If the promoted version is deleted, the name stands for the version promoted before it, or
    else for the newest that is left.
    """
    stored, tenant = engine_of(request).classifiers, tenant_of(request)
    current_record().classifier = await change(request, lambda: stored.delete(ref, tenant))
    return Response(status_code=204)


@router.post(
    "/classifiers/{ref}/promote",
    summary="Let a name stand for one of its versions",
    responses=error_responses(*ONE_CLASSIFIER_ERRORS, ErrorCode.NAME_MOVED, ErrorCode.MODEL_CHANGED),
)
@adapts
async def promote(
    request: Request,
    ref: Ref,
    instead_of: Annotated[
        _Id | None, Query(description="Promote only if the name still stands for the classifier with this id.")
    ] = None,
) -> schemas.ClassifierInfo:
    """Name the version as name@version, or by its id. Refused if its model is not served here, as predictions by the
    name would be.
    """
    return await _promoted(request, lambda store: store.promote(ref, instead_of=instead_of))


@router.post(
    "/classifiers/{ref}/rollback",
    summary="Let a name stand for the version promoted before",
    responses=error_responses(*ONE_CLASSIFIER_ERRORS, ErrorCode.NOTHING_TO_ROLL_BACK_TO, ErrorCode.MODEL_CHANGED),
)
@adapts
async def rollback(request: Request, ref: Ref) -> schemas.ClassifierInfo:
    """Takes a name. Each further rollback goes back one more. A version counts by its last promotion."""
    return await _promoted(request, lambda store: store.roll_back(ref))


async def _promoted(request: Request, call: Callable[[TenantStore], ClassifierRecord]) -> schemas.ClassifierInfo:
    """Let a name stand for the classifier that the call returns."""
    engine, tenant = engine_of(request), tenant_of(request)

    def promoted() -> ClassifierRecord:
        with engine.changing(tenant) as store:
            return call(store)

    found = await change(request, promoted)
    current_record().classifier = found.id
    return schemas.ClassifierInfo.model_validate(found)


@router.post(
    "/classifiers/{ref}/labels",
    status_code=201,
    response_model=schemas.AdaptResponse,
    summary="Give classes of a classifier other labels",
    responses=error_responses(*CHANGE_WITHOUT_IMAGES_ERRORS),
    openapi_extra=openapi_body(RenameRequest),
)
@adapts
async def rename_classes(request: Request, ref: Ref, key: KeyHeader = None) -> Response:
    """Its predictions stay the same, under the new labels. Only if classes get the same label they are merged, and the
    classifier is adapted again to its examples. A named classifier gets a new version; an unnamed one changes in place.
    """
    engine = begin(request, "adapt")
    body = await read_json_only(request, RenameRequest)
    check_labels(body.labels.values(), engine.settings)
    rename = RenameClasses(body.labels)
    return await make(request, lambda caller: engine.change(ref, rename, caller, promote=body.promote), key=key)
