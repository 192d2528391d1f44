"""Reading request bodies, multipart or JSON, within the limits, into the wire types."""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, TypeVar

from anyio import to_thread
from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Message

from comln_serve.api.errors import invalid_request
from comln_serve.api.schemas import (
    AdaptOptions,
    AdaptRequest,
    PredictOptions,
    PredictRequest,
    SupportImage,
)
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.settings import Settings

_MULTIPART, _JSON = "multipart/form-data", "application/json"
_Model = TypeVar("_Model", bound=BaseModel)

Support = list[tuple[bytes, str]]


async def read_adapt(request: Request, settings: Settings) -> tuple[Support, AdaptOptions]:
    """Support images (file bytes, label) and options of `POST /adapt`.

    Raises:
        ServiceError: anything wrong with the body.
    """
    if _is_multipart(request):
        async with _form(request, settings) as form:
            files = await _files(form, settings)
            labels = _texts(form, "labels")
            options = _validate(AdaptOptions, _options(form, AdaptOptions, {"images", "labels"}))
        if len(files) != len(labels):
            raise ServiceError(
                ErrorCode.INVALID_REQUEST,
                f"Received {len(files)} 'images' and {len(labels)} 'labels'; send one label for "
                "each image, in the same order.",
                received_images=len(files),
                received_labels=len(labels),
            )
        for position, label in enumerate(labels):
            _check_label(position, label, settings)
            _validate(SupportImage, {"image": "", "label": label}, where=f"labels.{position}")
        return list(zip(files, labels, strict=True)), options
    return await to_thread.run_sync(_adapt_of_json, await _json(request, settings), settings)


def _adapt_of_json(text: bytes, settings: Settings) -> tuple[Support, AdaptOptions]:
    body = _parse(AdaptRequest, text)
    _check_count(len(body.support), settings)
    for position, item in enumerate(body.support):
        _check_label(position, item.label, settings)
    support = [
        (_from_base64(f"support.{i}.image", item.image, settings), item.label)
        for i, item in enumerate(body.support)
    ]
    return support, AdaptOptions(**body.model_dump(exclude={"support"}))


async def read_predict(request: Request, settings: Settings) -> tuple[list[bytes], PredictOptions]:
    """Images (file bytes) and options of `POST /predict`.

    Raises:
        ServiceError: anything wrong with the body.
    """
    if _is_multipart(request):
        async with _form(request, settings) as form:
            files = await _files(form, settings)
            options = _validate(PredictOptions, _options(form, PredictOptions, {"images"}))
    else:
        text = await _json(request, settings)
        files, options = await to_thread.run_sync(_predict_of_json, text, settings)
    if not files:
        raise ServiceError(
            ErrorCode.INVALID_REQUEST,
            "No image was received. Send at least one in 'images'.",
            received_images=0,
        )
    return files, options


def _predict_of_json(text: bytes, settings: Settings) -> tuple[list[bytes], PredictOptions]:
    body = _parse(PredictRequest, text)
    _check_count(len(body.images), settings)
    files = [_from_base64(f"images.{i}", image, settings) for i, image in enumerate(body.images)]
    return files, PredictOptions(**body.model_dump(exclude={"images"}))


def _is_multipart(request: Request) -> bool:
    received = request.headers.get("content-type", "")
    kind = received.partition(";")[0].strip().lower()
    if kind not in (_MULTIPART, _JSON):
        raise ServiceError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Type is {received[:100]!r}; send {_MULTIPART} or {_JSON}.",
            received=received[:100],
            allowed=[_MULTIPART, _JSON],
        )
    return kind == _MULTIPART


def _limited(request: Request, limit: int) -> Request:
    """The request, refusing to read past `limit` bytes of body."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _body_too_large(int(declared), limit)
    received = 0

    async def receive() -> Message:
        nonlocal received
        message = await request.receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise _body_too_large(received, limit)
        return message

    return Request(request.scope, receive)


def _undecoded(request: Request) -> Request:
    """The request, its form fields to be read as Latin-1, a character for every byte.

    Left to itself the parser takes what is not UTF-8 for Latin-1 and a label becomes another one;
    `_utf8` turns the characters back into bytes and refuses those.
    """
    headers = [
        (name, value + b"; charset=latin-1" if name == b"content-type" else value)
        for name, value in request.scope["headers"]
    ]
    return Request({**request.scope, "headers": headers}, request.receive)


def _utf8(text: str) -> str:
    return text.encode("latin-1").decode("utf-8")


def _body_too_large(received: int, limit: int) -> ServiceError:
    return ServiceError(
        ErrorCode.BODY_TOO_LARGE,
        f"The request body has {received} bytes or more; at most {limit} are allowed. Send fewer "
        "or smaller images; multipart allows more than JSON.",
        received_bytes=received,
        allowed_bytes=limit,
    )


class _form:  # noqa: N801 (used as a function)
    """The multipart form as an async context; its temporary files are closed at the end."""

    def __init__(self, request: Request, settings: Settings) -> None:
        self._request, self._settings = (
            _undecoded(_limited(request, settings.max_body_bytes)),
            settings,
        )

    async def __aenter__(self) -> FormData:
        most = self._settings.max_images
        try:
            return await self._request.form(
                # One more than allowed gets through, so that _check_count can say how it is.
                max_files=most + 1,
                max_fields=most + 16,
                max_part_size=max(65536, 4 * self._settings.max_label_length),
            )
        except ClientDisconnect as error:
            raise ServiceError(ErrorCode.INVALID_REQUEST, "The request body broke off.") from error
        except HTTPException as error:
            if "Too many" in str(error.detail):
                raise _too_many(f"more than {most}", most) from error
            raise ServiceError(
                ErrorCode.INVALID_REQUEST,
                f"The multipart body cannot be read: {str(error.detail).rstrip('.')}. Let your "
                "HTTP client build it (curl -F, requests files=).",
            ) from error
        except (ValueError, LookupError) as error:
            raise ServiceError(
                ErrorCode.INVALID_REQUEST, f"The multipart body cannot be read: {error}."
            ) from error

    async def __aexit__(self, *_: object) -> None:
        await self._request.close()


async def _files(form: FormData, settings: Settings) -> list[bytes]:
    parts = form.getlist("images")
    _check_count(len(parts), settings)
    files = []
    for position, part in enumerate(parts):
        if not isinstance(part, UploadFile):
            raise ServiceError(
                ErrorCode.INVALID_REQUEST,
                f"images.{position} is a text field; send it as a file (curl -F images=@FILE).",
            )
        _check_bytes(f"images.{position}", part.size or 0, settings)
        files.append(await part.read())
    return files


def _texts(form: FormData, field: str) -> list[str]:
    values = []
    for position, value in enumerate(form.getlist(field)):
        if not isinstance(value, str):
            raise ServiceError(
                ErrorCode.INVALID_REQUEST,
                f"A {field!r} part carries a file name; send it as a plain text field.",
            )
        try:
            values.append(_utf8(value))
        except UnicodeError as error:
            raise ServiceError(
                ErrorCode.INVALID_REQUEST,
                f"{field}.{position} is not UTF-8 ({error}). Send all text as UTF-8.",
            ) from error
    return values


def _options(form: FormData, model: type[BaseModel], others: set[str]) -> dict[str, str]:
    """The single-valued fields of a form, unknown and repeated ones refused."""
    allowed = [*sorted(others), *model.model_fields]
    options = {}
    for field in dict.fromkeys(form.keys()):
        if field in others:
            continue
        if field not in model.model_fields:
            raise ServiceError(
                ErrorCode.INVALID_REQUEST,
                f"Unknown field {field[:100]!r}; allowed are {', '.join(allowed)}.",
                received=field[:100],
                allowed=allowed,
            )
        values = _texts(form, field)
        if len(values) > 1:
            raise ServiceError(
                ErrorCode.INVALID_REQUEST,
                f"Field {field!r} was sent {len(values)} times; send it once.",
            )
        options[field] = values[0]
    return options


async def _json(request: Request, settings: Settings) -> bytes:
    """The bytes of a JSON body; reading them as JSON is work for a thread."""
    limit = min(settings.max_json_bytes, settings.max_body_bytes)
    try:
        body = await _limited(request, limit).body()
    except ClientDisconnect as error:
        raise ServiceError(ErrorCode.INVALID_REQUEST, "The request body broke off.") from error
    if not body:
        raise ServiceError(ErrorCode.INVALID_REQUEST, "The request body is empty; send JSON.")
    return body


def _parse(model: type[_Model], text: bytes) -> _Model:
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


def _check_label(position: int, label: str, settings: Settings) -> None:
    if len(label) > settings.max_label_length:
        raise ServiceError(
            ErrorCode.INVALID_REQUEST,
            f"Label {position + 1} has {len(label)} characters; at most "
            f"{settings.max_label_length} are allowed.",
            received_length=len(label),
            allowed_length=settings.max_label_length,
        )


def _check_count(count: int, settings: Settings) -> None:
    if count > settings.max_images:
        raise _too_many(str(count), settings.max_images)


def _too_many(received: str, allowed: int) -> ServiceError:
    return ServiceError(
        ErrorCode.TOO_MANY_IMAGES,
        f"Received {received} images or fields; at most {allowed} images are allowed in a "
        "request. Split it.",
        allowed_images=allowed,
    )


def _check_bytes(where: str, size: int, settings: Settings) -> None:
    if size > settings.max_image_bytes:
        raise ServiceError(
            ErrorCode.IMAGE_TOO_LARGE,
            f"{where} has {size} bytes; at most {settings.max_image_bytes} are allowed. Send a "
            "smaller image.",
            received_bytes=size,
            allowed_bytes=settings.max_image_bytes,
        )


def _from_base64(where: str, text: str, settings: Settings) -> bytes:
    _check_bytes(where, len(text) * 3 // 4 - text[-2:].count("="), settings)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ServiceError(
            ErrorCode.INVALID_REQUEST,
            f"{where} is not base64 ({error}). Send the image file's bytes in standard base64, "
            "without line breaks or a data: prefix.",
        ) from error


def openapi_body(model: type[BaseModel], repeated: Sequence[str]) -> dict[str, Any]:
    """`openapi_extra` for a route that takes a form or JSON; the JSON schema is `model`'s.

    Args:
        model: the request in JSON. repeated: its multipart counterpart of the images.
    """
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    options = {
        name: field
        for name, field in schema["properties"].items()
        if name not in ("support", "images")
    }
    kinds = {
        "images": {"type": "array", "items": {"type": "string", "format": "binary"}},
        "labels": {"type": "array", "items": {"type": "string"}},
    }
    required = [name for name in schema.get("required", []) if name in options]
    form = {
        "type": "object",
        "properties": {**{name: kinds[name] for name in repeated}, **options},
        "required": [*repeated, *required],
    }
    encoding = {name: {"style": "form", "explode": True} for name in repeated}
    content = {
        _MULTIPART: {"schema": form, "encoding": encoding},
        _JSON: {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}},
    }
    return {"requestBody": {"required": True, "content": content}}
