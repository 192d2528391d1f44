"""Reads multipart forms: files within the limits, text as strict UTF-8."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from fastapi import Request
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header
from pydantic import BaseModel

from comln_serve.api.receive.images import read_image
from comln_serve.api.receive.limits import body_chunks, check_count, too_many
from comln_serve.configuration.settings import Settings
from comln_serve.engine.embedding.decoders import File
from comln_serve.errors import invalid

# Fields allowed beside the images and labels.
_OPTIONS = 16


class Part(NamedTuple):
    """A field of a form.

    Attributes:
        file: name of the file that it is, "" if that cannot be read; None: it is text.
    """

    name: str
    file: str | None
    content: bytes


Form = Sequence[Part]


async def read_form(request: Request, settings: Settings) -> Form:
    """Read the fields of a multipart request, in order, into memory.

    Raises:
        ServiceError: the body is over the limits or is not a multipart form.
    """
    parts: list[Part] = []
    reading: MultipartSegment | None = None
    pieces: list[bytes] = []
    try:
        _, parameters = parse_options_header(request.headers["content-type"])
        # Limits are checked below rather than by the parser, for errors that name them.
        with PushMultipartParser(parameters.get("boundary", "")) as parser:
            async for chunk in body_chunks(request, settings.max_body_bytes):
                for event in parser.parse(chunk):
                    if isinstance(event, MultipartSegment):
                        reading, pieces = event, []
                        _check_room(parts, event, settings)
                    elif event:
                        pieces.append(event)
                    elif reading is not None:
                        parts.append(_part(reading, b"".join(pieces), settings))
    except MultipartError as error:
        # The parser has the error and what caused it, whose tracebacks would keep parser and body.
        for failure in (error, error.__context__):
            if failure is not None:
                failure.__traceback__ = None
        raise invalid(
            f"The multipart body cannot be read: {error.args[0]}. Let your HTTP client build it "
            "(curl -F, requests files=)."
        ) from error
    return parts


def _check_room(parts: Form, segment: MultipartSegment, settings: Settings) -> None:
    """Refuse a further part if the form already has as many as a request can need."""
    most = settings.max_images
    is_file = _file_name(segment) is not None
    # Lets one image over the limit pass: check_count then reports how many there are.
    allowed = most + 1 if is_file else most + _OPTIONS
    if len(parts) >= allowed and sum((part.file is not None) == is_file for part in parts) >= allowed:
        raise too_many(f"more than {most}", most)


def _file_name(segment: MultipartSegment) -> str | None:
    """See `Part.file`."""
    # Some old clients send a file name that is not ASCII only as `filename*`, which the parser ignores.
    if segment.filename is None and "filename*=" in str(segment.header("Content-Disposition")):
        return ""
    return segment.filename


def _part(segment: MultipartSegment, content: bytes, settings: Settings) -> Part:
    name, file = segment.name or "", _file_name(segment)
    most = max(65536, 4 * settings.max_label_length)
    if file is None and len(content) > most:
        raise invalid(
            f"Field {name[:100]!r} has {len(content)} bytes; at most {most} are allowed in a text "
            "field. Send an image as a file (curl -F images=@FILE).",
            received_bytes=len(content),
            allowed_bytes=most,
        )
    return Part(name, file, content)


def files(form: Form, settings: Settings, *, partial: bool) -> tuple[list[File], list[str | None]]:
    """The `images` parts in order: files, and their names."""
    parts = [part for part in form if part.name == "images"]
    check_count(len(parts), settings)
    found: list[File] = []
    for position, part in enumerate(parts):
        where = f"images.{position}"
        if part.file is None:
            raise invalid(
                f"{where} is a text field, as its part has no file name; send it as a file (curl -F images=@FILE; in "
                "JavaScript a File or Blob)."
            )
        found.append(read_image(where, part.content, settings, partial=partial))
    return found, [part.file or None for part in parts]


def texts(form: Form, field: str) -> list[str]:
    """The values of a repeated text field, in order."""
    values: list[str] = []
    for part in form:
        if part.name != field:
            continue
        if part.file is not None:
            raise invalid(f"A {field!r} part carries a file name; send it as a plain text field.")
        try:
            values.append(part.content.decode("utf-8"))
        except UnicodeError as error:
            raise invalid(f"{field}.{len(values)} is not UTF-8 ({error}). Send all text as UTF-8.") from error
    return values


def options(form: Form, model: type[BaseModel], others: Collection[str]) -> dict[str, str]:
    """The single-valued fields of `model`. Refuses unknown and repeated fields.

    Args:
        others: fields that other functions read.
    """
    allowed = [*sorted(others), *model.model_fields]
    found: dict[str, str] = {}
    for field in dict.fromkeys(part.name for part in form):
        if field in others:
            continue
        if field not in model.model_fields:
            raise invalid(
                f"Unknown field {field[:100]!r}; allowed are {', '.join(allowed)}.",
                received=field[:100],
                allowed=allowed,
            )
        values = texts(form, field)
        if len(values) > 1:
            raise invalid(f"Field {field!r} was sent {len(values)} times; send it once.")
        found[field] = values[0]
    return found
