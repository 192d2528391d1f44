"""Reading request bodies, multipart or JSON, within the limits, into the wire types."""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, TypeVar

from anyio import to_thread
from fastapi import Request
from pydantic import BaseModel, ValidationError

from comln_serve.api import multipart
from comln_serve.api.errors import invalid_request
from comln_serve.api.limits import body_chunks, check_bytes, check_count, check_label
from comln_serve.api.requests import (
    AdaptForm,
    AdaptOptions,
    AdaptRequest,
    ExamplesOptions,
    ExamplesRequest,
    PredictOptions,
    PredictRequest,
    SupportImage,
)
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.settings import Settings

MULTIPART, JSON = "multipart/form-data", "application/json"
_Model = TypeVar("_Model", bound=BaseModel)

Support = list[tuple[bytes, str]]


async def read_adapt(request: Request, settings: Settings) -> tuple[Support, AdaptOptions]:
    """Support images (file bytes, label) and options of `POST /adapt`.

    Raises:
        ServiceError: anything wrong with the body.
    """
    if _is_multipart(request):
        return await _form(request, settings, AdaptForm)
    body = await to_thread.run_sync(parse_json, AdaptRequest, await _json(request, settings))
    support = await to_thread.run_sync(_support_of, body.support, settings)
    return support, body


async def read_examples(request: Request, settings: Settings) -> tuple[Support, ExamplesOptions]:
    """Support images (file bytes, label) and options of `POST /classifiers/{ref}/examples`.

    Raises:
        ServiceError: anything wrong with the body.
    """
    if _is_multipart(request):
        support, options = await _form(request, settings, ExamplesOptions)
    else:
        options = await to_thread.run_sync(
            parse_json, ExamplesRequest, await _json(request, settings)
        )
        support = await to_thread.run_sync(_support_of, options.support, settings)
    _need_an_image(support)
    return support, options


async def _form(
    request: Request, settings: Settings, model: type[_Model]
) -> tuple[Support, _Model]:
    """Labelled images, and the other fields as `model`."""
    form = await multipart.read_form(request, settings)
    files, labels = multipart.files(form, settings), multipart.texts(form, "labels")
    options = _validate(model, multipart.options(form, model, {"images", "labels"}))
    if len(files) != len(labels):
        raise ServiceError(
            ErrorCode.INVALID_REQUEST,
            f"Received {len(files)} 'images' and {len(labels)} 'labels'; send one label for "
            "each image, in the same order.",
            received_images=len(files),
            received_labels=len(labels),
        )
    for position, label in enumerate(labels):
        check_label(position, label, settings)
        _validate(SupportImage, {"image": "", "label": label}, where=f"labels.{position}")
    return list(zip(files, labels, strict=True)), options


def _support_of(items: list[SupportImage], settings: Settings) -> Support:
    check_count(len(items), settings)
    for position, item in enumerate(items):
        check_label(position, item.label, settings)
    return [
        (from_base64(f"support.{i}.image", item.image, settings), item.label)
        for i, item in enumerate(items)
    ]


async def read_predict(request: Request, settings: Settings) -> tuple[list[bytes], PredictOptions]:
    """Images (file bytes) and options of `POST /predict`.

    Raises:
        ServiceError: anything wrong with the body.
    """
    if _is_multipart(request):
        form = await multipart.read_form(request, settings)
        files = multipart.files(form, settings)
        options = _validate(PredictOptions, multipart.options(form, PredictOptions, {"images"}))
    else:
        text = await _json(request, settings)
        files, options = await to_thread.run_sync(_predict_of_json, text, settings)
    _need_an_image(files)
    return files, options


def _predict_of_json(text: bytes, settings: Settings) -> tuple[list[bytes], PredictOptions]:
    body = parse_json(PredictRequest, text)
    check_count(len(body.images), settings)
    files = [from_base64(f"images.{i}", image, settings) for i, image in enumerate(body.images)]
    return files, PredictOptions(**body.model_dump(exclude={"images"}))


def _need_an_image(received: Sequence[object]) -> None:
    if not received:
        raise ServiceError(
            ErrorCode.INVALID_REQUEST,
            "No image was received. Send at least one in 'images'.",
            received_images=0,
        )


def _is_multipart(request: Request) -> bool:
    received = request.headers.get("content-type", "")
    kind = received.partition(";")[0].strip().lower()
    if kind not in (MULTIPART, JSON):
        raise ServiceError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Type is {received[:100]!r}; send {MULTIPART} or {JSON}.",
            received=received[:100],
            allowed=[MULTIPART, JSON],
        )
    return kind == MULTIPART


async def _json(request: Request, settings: Settings) -> bytes:
    """The bytes of a JSON body; reading them as JSON is work for a thread."""
    return await whole_body(request, min(settings.max_json_bytes, settings.max_body_bytes))


async def whole_body(request: Request, limit: int) -> bytes:
    """The bytes of a body that is not empty.

    Raises:
        ServiceError: it is, or it is over `limit`, or it broke off.
    """
    body = b"".join([chunk async for chunk in body_chunks(request, limit)])
    if not body:
        raise ServiceError(ErrorCode.INVALID_REQUEST, "The request body is empty; send JSON.")
    return body


def parse_json(model: type[_Model], text: bytes) -> _Model:
    """A JSON body as a wire type.

    Raises:
        ServiceError: INVALID_REQUEST, it is no JSON or not of that type.
    """
    try:
        return _validate(model, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ServiceError(
            ErrorCode.INVALID_REQUEST, f"The request body is not JSON: {str(error)[:200]}."
        ) from error


def _validate(model: type[_Model], value: Any, *, where: str | None = None) -> _Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problem = invalid_request(error)
        if where is not None:
            problem = ServiceError(problem.code, f"{where}: {problem.message}", **problem.detail)
        raise problem from error


def from_base64(where: str, text: str, settings: Settings) -> bytes:
    """An image file that came as text; `where` is its place in the request, for messages.

    Raises:
        ServiceError: INVALID_REQUEST, it is no base64; IMAGE_TOO_LARGE.
    """
    check_bytes(where, len(text) * 3 // 4 - text[-2:].count("="), settings)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ServiceError(
            ErrorCode.INVALID_REQUEST,
            f"{where} is not base64 ({error}). Send the image file's bytes in standard base64, "
            "without line breaks or a data: prefix.",
        ) from error
