"""Reading multipart forms: files within the limits, text as strict UTF-8."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import Request
from pydantic import BaseModel
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from comln_serve.api.limits import check_bytes, check_count, limited, too_many
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.settings import Settings

# Text fields that are neither an image nor its label.
_OPTIONS = 16


class _Parser(MultiPartParser):
    """Keeps files in memory, where they are needed next and what they take is counted. Starlette
    writes larger ones to a disk, which may be memory of the same container, and back."""

    spool_max_size = 0  # never


@asynccontextmanager
async def open_form(request: Request, settings: Settings) -> AsyncGenerator[FormData, None]:
    """The form of a multipart request; what is left of its files is freed at the end.

    Raises:
        ServiceError: a body over the limits, or that is no multipart form.
    """
    bounded = _undecoded(limited(request, settings.max_body_bytes))
    most = settings.max_images
    parser = _Parser(
        bounded.headers,
        bounded.stream(),
        # One more than allowed gets through, so that check_count can say how it is.
        max_files=most + 1,
        max_fields=most + _OPTIONS,
        max_part_size=max(65536, 4 * settings.max_label_length),
    )
    try:
        form = await parser.parse()
    except ClientDisconnect as error:
        raise ServiceError(ErrorCode.INVALID_REQUEST, "The request body broke off.") from error
    except MultiPartException as error:
        if "Too many" in error.message:
            raise too_many(f"more than {most}", most) from error
        raise ServiceError(
            ErrorCode.INVALID_REQUEST,
            f"The multipart body cannot be read: {error.message.rstrip('.')}. Let your HTTP "
            "client build it (curl -F, requests files=).",
        ) from error
    except (ValueError, LookupError) as error:
        raise ServiceError(
            ErrorCode.INVALID_REQUEST, f"The multipart body cannot be read: {error}."
        ) from error
    try:
        yield form
    finally:
        await form.close()


async def files(form: FormData, settings: Settings) -> list[bytes]:
    """The bytes of the `images` parts, in order."""
    parts = form.getlist("images")
    check_count(len(parts), settings)
    contents: list[bytes] = []
    for position, part in enumerate(parts):
        if not isinstance(part, UploadFile):
            raise ServiceError(
                ErrorCode.INVALID_REQUEST,
                f"images.{position} is a text field; send it as a file (curl -F images=@FILE).",
            )
        check_bytes(f"images.{position}", part.size or 0, settings)
        contents.append(await part.read())
        await part.close()  # not to hold it twice
    return contents


def texts(form: FormData, field: str) -> list[str]:
    """The values of a repeated text field, in order."""
    values: list[str] = []
    for position, value in enumerate(form.getlist(field)):
        if not isinstance(value, str):
            raise ServiceError(
                ErrorCode.INVALID_REQUEST,
                f"A {field!r} part carries a file name; send it as a plain text field.",
            )
        try:
            values.append(value.encode("latin-1").decode("utf-8"))  # see _undecoded
        except UnicodeError as error:
            raise ServiceError(
                ErrorCode.INVALID_REQUEST,
                f"{field}.{position} is not UTF-8 ({error}). Send all text as UTF-8.",
            ) from error
    return values


def options(form: FormData, model: type[BaseModel], others: set[str]) -> dict[str, str]:
    """The single-valued fields, those of `model`; unknown and repeated ones are refused.

    Args:
        others: fields that are read elsewhere.
    """
    allowed = [*sorted(others), *model.model_fields]
    found: dict[str, str] = {}
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
        values = texts(form, field)
        if len(values) > 1:
            raise ServiceError(
                ErrorCode.INVALID_REQUEST,
                f"Field {field!r} was sent {len(values)} times; send it once.",
            )
        found[field] = values[0]
    return found


def _undecoded(request: Request) -> Request:
    """The request, its form fields to be read as Latin-1, a character for every byte.

    Left to itself the parser takes what is not UTF-8 for Latin-1, and a label becomes another one;
    `texts` turns the characters back into bytes and refuses those.
    """
    headers = [
        (name, value + b"; charset=latin-1" if name == b"content-type" else value)
        for name, value in request.scope["headers"]
    ]
    return Request({**request.scope, "headers": headers}, request.receive)
