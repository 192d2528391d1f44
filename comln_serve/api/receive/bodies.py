"""Reads request bodies, multipart or JSON, into the wire types and enforces the limits."""

import codecs
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from comln_serve.api.authentication import tenant_of
from comln_serve.api.errors import invalid_request
from comln_serve.api.receive import multipart
from comln_serve.api.receive.images import read_image
from comln_serve.api.receive.limits import body_chunks, check_count, check_labels, json_limit
from comln_serve.api.receive.parameters import has_body
from comln_serve.api.receive.requests import (
    AdaptForm,
    AdaptOptions,
    AdaptRequest,
    AgainOptions,
    ExamplesOptions,
    ExamplesRequest,
    PredictOptions,
    PredictRequest,
    SupportImage,
)
from comln_serve.api.sent import Sent
from comln_serve.api.work import engine_of, work
from comln_serve.configuration.settings import Settings
from comln_serve.domain.support import SupportSet
from comln_serve.errors import ErrorCode, ServiceError, invalid
from comln_serve.export.support_file import SupportFileError, read_support

MULTIPART, JSON, BYTES = "multipart/form-data", "application/json", "application/octet-stream"
_HINT_FOR_CURL = "curl -d sends this type; for another, add -H 'Content-Type: {allowed}'."
_Model = TypeVar("_Model", bound=BaseModel)
_Form = TypeVar("_Form", AdaptForm, ExamplesOptions, PredictOptions)
_Json = TypeVar("_Json", AdaptRequest, ExamplesRequest, PredictRequest)
_Read = TypeVar("_Read")

# Commas and opening brackets allowed in a JSON body beside its images: metadata, options.
_OTHER_SEPARATORS = 2**16
# Bytes allowed in a support file's header beside its labels: metadata, arrays.
_OTHER_HEADER = 2**18

# Windows PowerShell writes them to files.
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

# Fields that hold a list of images.
_OF_IMAGES = ("support", "images")


async def read_images(
    request: Request, form_options: type[_Form], json_body: type[_Json]
) -> tuple[Sent, _Form | _Json]:
    """Read images, with labels if it is a body of support images, and the other fields of the form or the JSON.

    Raises:
        ServiceError: anything wrong with the body, here and below.
    """
    if not _is_multipart(request):
        read = await _parsed(request, partial(_images_of_json, json_body))
    else:
        settings = engine_of(request).settings
        form = await multipart.read_form(request, settings)
        read = _images_of_form(form, form_options, settings, labelled="support" in json_body.model_fields)
    if not read[0].images and json_body is not AdaptRequest:  # which is told how many classes it needs
        raise invalid("No image was received. Send at least one in 'images'.", received_images=0)
    return read


async def read_again(request: Request) -> AgainOptions:
    """Options of `POST /classifiers/{ref}/adapt`, which may have no body."""
    # `has_body` reads the first chunk of a chunked body. One that has a Content-Type is left to its reader.
    left_to_reader = "content-type" in request.headers and "transfer-encoding" in request.headers
    if not left_to_reader and not await has_body(request):
        return AgainOptions()
    if _is_multipart(request):
        form = await multipart.read_form(request, engine_of(request).settings)
        return _validate(AgainOptions, multipart.options(form, AgainOptions, set()))
    return await _parsed(request, partial(parse_json, AgainOptions))


class SentSupport(NamedTuple):
    """An exported support set, the options that its file has for its classifier, the hash of the bundle that embedded
    it, and that of the file.
    """

    support: SupportSet
    options: AdaptOptions
    embedder_sha256: str
    digest: str


async def read_support_file(request: Request) -> SentSupport:
    """The body of `POST /classifiers`.

    Raises:
        ServiceError: anything wrong with the body.
    """
    _check_content_type(request, BYTES)
    settings = engine_of(request).settings
    content: bytes | bytearray = await whole_body(request, settings.max_body_bytes, "an exported support set")
    # A character takes at most 7 bytes in JSON within JSON.
    most_header = settings.max_classes * (7 * settings.max_label_length + 16) + _OTHER_HEADER

    def read() -> SentSupport:
        nonlocal content
        content = bytes(content)  # which safetensors needs; the body itself is not kept beside it and the arrays
        try:
            support, about = read_support(
                content, most_header=most_header, most_classes=settings.max_classes, most_examples=settings.max_examples
            )
        except SupportFileError as error:
            raise invalid(
                f"The file cannot be used: {error}. Send one of GET /classifiers/{{ref}}/support.", problem=str(error)
            ) from error
        _validate_labels(about.labels, settings)
        chosen = about.model_dump(include={"model", "name", "horizon", "metadata"})
        options = _validate(AdaptOptions, chosen, where="the file's header")
        return SentSupport(support, options, about.embedder_sha256, sha256(content).hexdigest())

    return await in_parsing_thread(request, read)


async def read_json_only(request: Request, model: type[_Model]) -> _Model:
    """The body of a route that takes JSON only."""
    _check_content_type(request, JSON)
    return await _parsed(request, partial(parse_json, model))


def _images_of_form(
    form: multipart.Form, form_options: type[_Form], settings: Settings, *, labelled: bool
) -> tuple[Sent, _Form]:
    fields = {"images", "labels"} if labelled else {"images"}
    options = _validate(form_options, multipart.options(form, form_options, fields))
    files, names = multipart.files(form, settings, partial=options.partial)
    labels = multipart.texts(form, "labels") if labelled else []
    if labelled and len(files) != len(labels):
        raise invalid(
            f"Received {len(files)} 'images' and {len(labels)} 'labels'; send one field 'labels' for "
            "each image, in the same order. A list in one field is one label.",
            received_images=len(files),
            received_labels=len(labels),
        )
    _validate_labels(labels, settings)
    return Sent(files, labels, names, options.partial), options


def _images_of_json(model: type[_Json], text: bytearray, settings: Settings) -> tuple[Sent, _Json]:
    body = parse_json(model, text, settings)
    # The body does not keep its images beside what is decoded.
    if isinstance(body, PredictRequest):
        where, images, labels = "images.{}", body.images, list[str]()
        body.images = []
    else:
        where, images = "support.{}.image", [item.image for item in body.support]
        labels = [item.label for item in body.support]
        body.support = []
    check_labels(labels, settings)
    files = [read_image(where.format(i), image, settings, partial=body.partial) for i, image in enumerate(images)]
    return Sent(files, labels, partial=body.partial), body


def _validate_labels(labels: Sequence[str], settings: Settings) -> None:
    """Check labels of a form or a file by the same rules as those in JSON."""
    check_labels(labels, settings)
    for position, label in enumerate(labels):
        _validate(SupportImage, {"image": "", "label": label}, where=f"labels.{position}")


def _is_multipart(request: Request) -> bool:
    return _check_content_type(request, MULTIPART, JSON) == MULTIPART


def _check_content_type(request: Request, *allowed: str) -> str:
    """Which of the allowed content types the body has."""
    received = request.headers.get("content-type", "")
    kind = received.partition(";")[0].strip().lower()
    if kind not in allowed:
        hint = f" {_HINT_FOR_CURL.format(allowed=allowed[-1])}" if kind == "application/x-www-form-urlencoded" else ""
        raise ServiceError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            f"{f'Content-Type is {received[:100]!r}' if received else 'No Content-Type was received'}; "
            f"send {' or '.join(allowed)}.{hint}",
            received=received[:100],
            allowed=list(allowed),
        )
    return kind


async def _parsed(request: Request, parse: Callable[[bytearray, Settings], _Read]) -> _Read:
    settings = engine_of(request).settings
    text = await whole_body(request, json_limit(settings))
    return await in_parsing_thread(request, lambda: parse(text, settings))


async def in_parsing_thread(request: Request, read: Callable[[], _Read]) -> _Read:
    """Parse a body off the event loop, one body at a time; tenants take turns.

    Parsing holds the GIL: several bodies at once would take as long and several times the memory.
    """
    async with request.app.state.parsing.turn(tenant_of(request)):
        return await work(request, read)


async def whole_body(request: Request, limit: int, expected: str = "JSON") -> bytearray:
    """Read the whole body.

    Args:
        expected: what to send, for the error of an empty body.

    Raises:
        ServiceError: the body is empty, is over `limit` bytes, or broke off.
    """
    body = bytearray()  # grows in place: no second copy, no memory fragmented by chunks
    async for chunk in body_chunks(request, limit):
        body += chunk
    if not body:
        raise invalid(f"The request body is empty; send {expected}.")
    return body


def parse_json(model: type[_Model], text: bytes | bytearray, settings: Settings) -> _Model:
    """Parse a JSON body as a wire type.

    The values are counted before they are parsed: an empty list of three bytes takes 64 in memory.
    Every value but the first follows a comma or an opening bracket. A request within the other
    limits never has more of these than allowed, even if its labels consist of them.

    Raises:
        ServiceError: INVALID_REQUEST, the body has too many values, is not JSON or does not match
            the type; TOO_MANY_IMAGES.
    """
    separators = len(text) - len(text.translate(None, delete=b",[{"))
    allowed = settings.max_images * (settings.max_label_length + 4) + _OTHER_SEPARATORS
    if separators > allowed:
        raise invalid(
            f"The request body has {separators} commas and opening brackets; at most {allowed} are allowed, which "
            f"{settings.max_images} images and their labels cannot exceed. Send an image as one string, in base64.",
            received_separators=separators,
            allowed_separators=allowed,
        )
    try:
        # json.loads would decode the text first, to 4 bytes a character if one is an emoji.
        value = from_json(text, cache_strings=False)
    except ValueError as error:
        what = "starts with a byte order mark; send UTF-8 without one" if text.startswith(_MARKS) else str(error)[:200]
        raise invalid(f"The request body is not JSON: {what}.") from error
    if isinstance(value, dict):
        # Too many images are refused before pydantic checks each, which takes half a second for a hundred thousand.
        for name in _OF_IMAGES:
            if name in model.model_fields and isinstance(images := value.get(name), list):
                check_count(len(images), settings)
    return _validate(model, value)


def _validate(model: type[_Model], value: Any, *, where: str | None = None) -> _Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        # No variable: the error's traceback would keep the body until a garbage collection.
        raise invalid_request(error, where) from error
