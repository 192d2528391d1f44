"""Routes that list, add, relabel and remove a classifier's support examples, and adapt to them again."""

from hashlib import sha256
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import Field

from comln_serve.api import schemas
from comln_serve.api.authentication import adapts, tenant_of, uses
from comln_serve.api.document.openapi import header, openapi_body
from comln_serve.api.errors import error_responses
from comln_serve.api.receive import requests
from comln_serve.api.receive.bodies import read_again, read_images, read_json_only
from comln_serve.api.receive.limits import check_labels
from comln_serve.api.routes.shared import (
    BODY_ERRORS,
    CHANGE_ERRORS,
    CHANGE_WITHOUT_IMAGES_ERRORS,
    ONE_CLASSIFIER_ERRORS,
    KeyHeader,
    Ref,
)
from comln_serve.api.work import as_json, begin, engine_of, make, read
from comln_serve.engine.adapting.changes import AdaptAgain, RelabelExamples, RemoveExamples
from comln_serve.errors import ErrorCode

router = APIRouter(tags=["examples"])

_JPEG = "image/jpeg"
_TAG = {"ETag": header("Of the file; for `If-None-Match`.", "string")}

Promote = Annotated[bool, Query(description="Let the name stand for the new version at once.")]
Number = Annotated[int, Path(ge=1, le=requests.MOST_NUMBER)]

_REMOVAL_ERRORS = (*ONE_CLASSIFIER_ERRORS, *CHANGE_ERRORS, ErrorCode.EXAMPLE_NOT_FOUND)


@router.get(
    "/classifiers/{ref}/examples",
    response_model=schemas.ExampleList,
    summary="List the examples a classifier was adapted to",
    responses=error_responses(*ONE_CLASSIFIER_ERRORS),
)
@uses
async def list_examples(request: Request, ref: Ref) -> Response:
    """The server keeps the images' embeddings, not the images."""
    stored = engine_of(request).classifiers.of(tenant_of(request))

    def listed() -> Response:
        found, numbered = stored.examples(ref)
        examples = [schemas.Example(number=number, label=label) for number, label in numbered]
        return as_json(schemas.ExampleList(classifier=found.id, revision=found.revision, examples=examples))

    return await read(request, listed)


@router.get(
    "/classifiers/{ref}/examples/{number}/thumbnail",
    summary="Show an example as a small JPEG, if the server keeps one",
    response_class=Response,
    responses={
        **error_responses(*ONE_CLASSIFIER_ERRORS, ErrorCode.THUMBNAIL_NOT_FOUND),
        200: {"content": {_JPEG: {"schema": {"type": "string", "format": "binary"}}}, "headers": _TAG},
        304: {"description": "`If-None-Match` has the file's `ETag`.", "headers": _TAG},
    },
)
@uses
async def get_thumbnail(
    request: Request, ref: Ref, number: Number, known: Annotated[str, Header(alias="If-None-Match")] = ""
) -> Response:
    """Of one example of each class at most, and only where the operator allows it (`keep_thumbnails`
    of GET /limits). `classes` of a classifier has the numbers.
    """
    classifiers, tenant = engine_of(request).classifiers, tenant_of(request)
    content = await read(request, lambda: classifiers.thumbnail(ref, number, tenant))
    tag = f'"{sha256(content).hexdigest()[:32]}"'
    # Browsers ask each time: a thumbnail is gone as soon as its classifier or its example is.
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Authorization"}
    if any(one.strip().removeprefix("W/") in (tag, "*") for one in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_JPEG, headers=headers)


@router.post(
    "/classifiers/{ref}/examples",
    status_code=201,
    response_model=schemas.AdaptResponse,
    summary="Adapt a classifier to more labelled images",
    responses=error_responses(*BODY_ERRORS, *CHANGE_ERRORS, ErrorCode.IDEMPOTENCY_MISMATCH),
    openapi_extra=openapi_body(requests.ExamplesRequest, ["images", "labels"]),
)
@adapts
async def add_examples(request: Request, ref: Ref, key: KeyHeader = None) -> Response:
    """A named classifier gets a new version; an unnamed one changes in place. New labels become new classes."""
    engine = begin(request, "adapt")
    sent, options = await read_images(request, requests.ExamplesOptions, requests.ExamplesRequest)
    return await make(
        request,
        lambda caller: engine.add_examples(ref, sent.support, caller, promote=options.promote, partial=sent.partial),
        sent=sent,
        key=key,
    )


@router.post(
    "/classifiers/{ref}/examples/labels",
    status_code=201,
    response_model=schemas.AdaptResponse,
    summary="Adapt a classifier with other labels for some of its examples",
    responses=error_responses(*CHANGE_WITHOUT_IMAGES_ERRORS, ErrorCode.EXAMPLE_NOT_FOUND),
    openapi_extra=openapi_body(requests.RelabelRequest),
)
@adapts
async def relabel_examples(request: Request, ref: Ref, key: KeyHeader = None) -> Response:
    """It is adapted once. A named classifier gets a new version; an unnamed one changes in place. New labels become new
    classes; a class that loses its last example is gone. If one of the numbers does not exist, nothing is changed.
    """
    engine = begin(request, "adapt")
    body = await read_json_only(request, requests.RelabelRequest)
    check_labels(body.labels.values(), engine.settings)
    relabel = RelabelExamples(body.labels)
    return await make(request, lambda caller: engine.change(ref, relabel, caller, promote=body.promote), key=key)


@router.delete(
    "/classifiers/{ref}/examples",
    response_model=schemas.AdaptResponse,
    summary="Adapt a classifier without some of its examples",
    responses=error_responses(*_REMOVAL_ERRORS),
)
@adapts
async def remove_examples(
    request: Request,
    ref: Ref,
    number: Annotated[
        list[Annotated[int, Field(ge=1, le=requests.MOST_NUMBER)]],
        Query(
            min_length=1,
            max_length=requests.MOST_EXAMPLES,
            description="Of an example; repeated, `number=3&number=7`, of several. One given twice counts once.",
        ),
    ],
    promote: Promote = True,
) -> Response:
    """It is adapted once. A named classifier gets a new version; an unnamed one changes in place. Removing the last
    example of a class removes the class. If one of the numbers does not exist, nothing is removed.
    """
    engine, removal = begin(request, "adapt"), RemoveExamples(number)
    return await make(request, lambda caller: engine.change(ref, removal, caller, promote=promote))


@router.delete(
    "/classifiers/{ref}/examples/{number}",
    response_model=schemas.AdaptResponse,
    summary="Adapt a classifier without one of its examples",
    responses=error_responses(*_REMOVAL_ERRORS),
)
@adapts
async def remove_example(request: Request, ref: Ref, number: Number, promote: Promote = True) -> Response:
    """A named classifier gets a new version; an unnamed one changes in place. Removing the last
    example of a class removes the class.
    """
    return await remove_examples(request, ref, [number], promote)


@router.post(
    "/classifiers/{ref}/adapt",
    status_code=201,
    response_model=schemas.AdaptResponse,
    summary="Adapt a classifier again to the examples it has",
    responses=error_responses(*CHANGE_WITHOUT_IMAGES_ERRORS),
    openapi_extra=openapi_body(requests.AgainOptions, [], required=False),
)
@adapts
async def adapt_again(request: Request, ref: Ref, key: KeyHeader = None) -> Response:
    """To another `horizon`, or after its model's head was replaced. No images are needed, and no body where the
    classifier is to keep its horizon. A named classifier gets a new version; an unnamed one changes in place.
    """
    engine = begin(request, "adapt")
    options = await read_again(request)
    again = AdaptAgain(options.horizon)
    return await make(request, lambda caller: engine.change(ref, again, caller, promote=options.promote), key=key)
