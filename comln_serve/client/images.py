"""From what callers have (paths, bytes, pictures, arrays) to the image files that are sent."""

import io
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

from PIL import Image, ImageOps, UnidentifiedImageError

from comln_serve.client.errors import BadImageError, InputError

# The last two stand for NumPy arrays and whatever else has their interface.
ImageSource: TypeAlias = str | os.PathLike[str] | bytes | bytearray | BinaryIO | Image.Image | Any
"""A path, the bytes of an image file, an opened file, a Pillow image, or an array: uint8 of shape (H, W, 3) or (H, W).
"""

DEFAULT_MAX_SIDE = 1024

# Where Pillow's name of a format is not the server's.
_SERVERS_NAME = {"MPO": "JPEG", "HEIF": "HEIC"}
# Pictures of other modes (16 bits, CMYK) are not shrunk: the server converts them by rules of its own.
_SHRINKABLE = {"1", "L", "LA", "P", "RGB", "RGBA"}
_JPEG_QUALITY = 92
_LONGEST_PATH = 4096  # on Linux
_MOST_PIXELS = 178_956_970  # of Pillow


@dataclass(frozen=True)
class Source:
    """An image of a call.

    Attributes:
        name: for messages: its path, or "image N".
        label: its class; None to predict.
    """

    name: str
    content: ImageSource
    label: str | None = None


@dataclass(frozen=True)
class Prepared(Source):
    """An image of a call as a file that is ready to be sent."""

    content: bytes


def sources(images: Sequence[ImageSource], labels: Sequence[str] | None = None) -> list[Source]:
    """Name the images of a call, and pair them with their labels. Raises InputError if they are no list of images, as a
    single one as an array, or there is not one label for each.
    """
    one_or_dict = isinstance(images, str | bytes | bytearray | dict | os.PathLike | Image.Image)
    if one_or_dict or hasattr(images, "read") or not hasattr(images, "__iter__"):
        kind = type(images).__name__
        raise InputError(f"images is a {kind}; give a list of images, with one label each where they have some")
    shape = tuple(getattr(images, "shape", ()))
    if len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4)):  # a picture: its rows are no images
        raise InputError(f"images has the shape {shape}, as of a single image; give a list of images, [image]")
    given = [
        item if isinstance(item, Source) else Source(_name(item, number), item) for number, item in enumerate(images, 1)
    ]
    if not given:
        raise InputError("images is empty; give at least one image")
    if labels is None:
        return given
    if isinstance(labels, str):
        raise InputError("labels is a single text; give a list with one label for each image")
    texts = list(labels)
    if len(texts) != len(given):
        raise InputError(f"received {len(given)} images and {len(texts)} labels; give one label for each image")
    for number, text in enumerate(texts, 1):
        if not isinstance(cast("object", text), str) or not text.strip():
            raise InputError(f"label {number} is {text!r}; a label is text that is not blank")
        try:
            text.encode()
        except UnicodeEncodeError:
            remedy = "rename the class, or its folder"
            raise InputError(f"label {number} is {text!r}, which is not valid Unicode; {remedy}") from None
    return [replace(item, label=text) for item, text in zip(given, texts, strict=True)]


def name_of(path: str | bytes | os.PathLike[Any]) -> str:
    r"""A file's name to show, in which bytes that are not UTF-8 are written as \\xe9."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def prepare(source: Source, max_side: int | None, formats: Collection[str]) -> Prepared:
    """Read an image and encode it as a file.

    Files are sent as they are, unless their longer side has more than `max_side` pixels: then they are shrunk to it,
    turned upright, and sent as JPEG (PNG if they are transparent). Pillow images, arrays and files of formats that
    the server does not read are sent as PNG.

    Args:
        source: returned as it is if it is prepared.
        max_side: in pixels; None: never shrink.
        formats: that the server reads, by its names.

    Raises:
        BadImageError: it cannot be read, or is no image.
        InputError: it is of none of the types that can be sent.
    """
    if isinstance(source, Prepared):
        return source
    content = source.content
    # NumPy's texts and bytes have the interface, too.
    if hasattr(content, "__array_interface__") and not isinstance(content, str | bytes | Image.Image):
        content = _of_array(source.name, content)
    if isinstance(content, Image.Image):
        data = _picture(source.name, content, max_side)
    else:
        data = _file(source.name, _read(source.name, content), max_side, formats)
    return Prepared(source.name, data, source.label)


def _name(item: ImageSource, number: int) -> str:
    if not isinstance(item, str | os.PathLike) or str(item).startswith("data:") or len(str(item)) > _LONGEST_PATH:
        return f"image {number}"  # a data URL, or base64 in place of a path, has no name, and is long
    return name_of(item)


def _read(name: str, content: ImageSource) -> bytes:
    if isinstance(content, bytes | bytearray):
        return bytes(content)
    if isinstance(content, str) and content.startswith(("data:", "http://", "https://")):
        remedy = "decode it" if content.startswith("data:") else "download the image"
        raise BadImageError(name, f"is an address, not a path; {remedy} and give the bytes")
    if isinstance(content, str | os.PathLike):
        try:
            return Path(content).read_bytes()
        except OSError as error:
            raise BadImageError(name, f"cannot be read: {error.strerror or error}") from error
    read: Callable[[], Any] | None = getattr(content, "read", None)
    data = read() if callable(read) else None
    if not isinstance(data, bytes):
        raise InputError(
            f"{name} is a {type(content).__name__}; an image is a path, bytes, a file opened in binary mode, "
            "a Pillow image or a NumPy array (uint8, height x width x 3)"
        )
    return data


def _of_array(name: str, array: Any) -> Image.Image:
    interface = array.__array_interface__
    shape, kind = tuple(interface["shape"]), getattr(array, "dtype", interface["typestr"])
    if interface["typestr"] != "|u1" or not (len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)) or 0 in shape:
        raise InputError(
            f"{name} is an array of shape {shape} and type {kind}; allowed are uint8 of shape (height, width, 3), RGB "
            "from 0 to 255, and (height, width), greyscale"
        )
    return Image.fromarray(array)


def _file(name: str, data: bytes, max_side: int | None, formats: Collection[str]) -> bytes:
    try:
        with Image.open(io.BytesIO(data)) as picture:
            fits = max_side is None or max(picture.size) <= max_side or picture.mode not in _SHRINKABLE
            kind = picture.format or ""
            if fits and _SERVERS_NAME.get(kind, kind) in formats:
                return data  # the server finds out whether it is damaged
            if not fits and max_side is not None:
                picture.draft(None, (max_side, max_side))  # decodes a JPEG at a reduced size
            return _encode(picture, None if fits else max_side, lossless=fits)
    except Image.DecompressionBombError:
        raise BadImageError(name, f"has more than {_MOST_PIXELS} pixels; make it smaller") from None
    except UnidentifiedImageError:
        if data[4:8] == b"ftyp":
            return data  # HEIC, which Pillow does not read without a plugin; the server may
        if data.startswith(b"PK\3\4"):
            raise BadImageError(name, "is a ZIP archive; unpack it, and give the images in it") from None
        raise BadImageError(name, f"is no image: it begins with {data[:8]!r}" if data else "is empty") from None
    except Exception as error:  # of many types, as Pillow's readers meet damaged files
        raise BadImageError(name, f"is damaged or too large: {error}") from error


def _picture(name: str, picture: Image.Image, max_side: int | None) -> bytes:
    if picture.mode not in _SHRINKABLE:
        deep = picture.mode.startswith(("I", "F"))  # convert() cuts off what is over 255
        remedy = "give its file instead, or scale it to 0 to 255" if deep else "convert('RGB') makes one of these"
        raise InputError(
            f"{name} is a Pillow image of mode {picture.mode}; allowed are {', '.join(sorted(_SHRINKABLE))}: {remedy}"
        )
    try:
        fits = max_side is None or max(picture.size) <= max_side
        return _encode(picture, None if fits else max_side, lossless=True)
    except (OSError, ValueError) as error:
        raise BadImageError(name, f"cannot be encoded: {error}") from error


def _encode(picture: Image.Image, max_side: int | None, *, lossless: bool) -> bytes:
    """The picture, upright and at most `max_side` pixels long, as a PNG or JPEG file."""
    upright = picture
    with suppress(Exception):  # EXIF data that are damaged
        upright = ImageOps.exif_transpose(picture)
    transparent = upright.has_transparency_data
    if max_side is not None:
        if upright.mode in ("1", "P"):  # cannot be interpolated
            upright = upright.convert("RGBA" if transparent else "RGB")
        upright.thumbnail((max_side, max_side), Image.Resampling.LANCZOS, reducing_gap=3.0)
    buffer = io.BytesIO()
    if lossless or transparent:
        upright.save(buffer, "PNG", compress_level=1)
    else:
        upright.convert("L" if upright.mode == "L" else "RGB").save(buffer, "JPEG", quality=_JPEG_QUALITY)
    return buffer.getvalue()
