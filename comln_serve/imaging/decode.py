"""From the bytes of an image file, as people have them, to an upright RGB picture."""

import io
import math
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from PIL import Image, ImageOps

from comln_serve.imaging.boxes import announced_pixels
from comln_serve.imaging.colours import UNSUPPORTED, to_rgb
from comln_serve.imaging.errors import ImageError, StoppedError
from comln_serve.imaging.formats import FORMATS, recognise
from comln_serve.imaging.tiff import read_page

DEFAULT_MAX_PIXELS = 64_000_000
# Pillow itself refuses what is over twice its own limit of 89 million, whatever we would allow.
MOST_PIXELS = 178_000_000
# A progressive JPEG has about ten scans. Each of them costs a pass over all pixels, even one that
# takes 15 bytes.
_MOST_SCANS = 200
# Reads that opening a file may take. Pillow reads a header piece by piece, padding byte by byte.
_MOST_READS = 10_000
# Entries of an EXIF block that is looked into; cameras write about fifty.
_MOST_EXIF_ENTRIES = 1000
_EXIF = b"Exif\0\0"
_EXIF_SEGMENT = 65536


@dataclass(frozen=True)
class ImageFile:
    """An image of which nothing but the header has been read.

    Attributes:
        picture: with the size that it will be decoded at.
        kind: its format, one of `FORMATS`.
        described: what was received, for messages.
        full_size: its pixels as they are stored: before a HEIC or AVIF picture is cropped, or of
            one tile of a TIFF file where that is larger than the picture.
        formats: that are accepted, for errors.
    """

    picture: Image.Image
    kind: str
    described: str
    full_size: int
    formats: Sequence[str]

    @property
    def pixels(self) -> int:
        """That decoding has in memory at once, in pixels of up to 16 bytes."""
        if self.kind == "JPEG" and not self.picture.info.get("progressive"):
            return self.picture.width * self.picture.height
        # All others are decoded whole. A progressive JPEG keeps all coefficients to the last scan.
        # Samples of 10 or 12 bits are in memory as 16 first; of AVIF it is not known beforehand.
        deep = self.kind == "AVIF" or self.picture.info.get("bit_depth", 8) > 8
        return self.full_size * 3 // 2 if deep else self.full_size

    def decode(self, background: tuple[int, int, int] = (255, 255, 255)) -> Image.Image:
        """The first page or frame, of HEIC the primary picture, upright, as 8-bit RGB. Once only.

        Transparent pixels are laid over `background`; samples of more bits are scaled to 8;
        palettes, greyscale and CMYK are converted.

        Raises:
            ImageError: it is truncated or corrupt.
            StoppedError: the file's `check` has raised it.
        """
        try:
            self.picture.load()
            return to_rgb(_upright(self.picture), background)
        except (MemoryError, StoppedError):
            raise
        except Exception as error:  # noqa: BLE001 - a hostile file can raise anything
            why = str(error)
        # Raised here, not above: what an error was raised from it keeps, with all these pixels.
        self.picture.close()
        raise _corrupt(self.described, why, self.formats)


def open_image(
    data: bytes,
    *,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    enough: int | None = None,
    formats: Sequence[str] = FORMATS,
    check: Callable[[], None] = lambda: None,
) -> ImageFile:
    """Look at an image file without decoding it.

    Args:
        data: a whole file.
        max_pixels: width x height above which the file is refused.
        enough: shorter side, in pixels, beyond which detail will not be used; a JPEG will then be
            decoded at 1/2, 1/4 or 1/8 of its size, never below this.
        formats: of `FORMATS`, those that are accepted.
        check: called whenever the file is read, also while it is decoded; it raises StoppedError to
            end that.

    Raises:
        ImageError: not an image, another format, or too large.
        StoppedError: of `check`.
    """
    if not data:
        raise _invalid("the file is empty (0 bytes)", formats)
    kind = recognise(data)
    if kind is None:
        raise _invalid(
            f"{len(data)} bytes that are not a readable image in one of these formats: "
            f"{', '.join(formats)}",
            formats,
        )
    if kind not in formats:
        raise _not_accepted(kind, len(data), formats)
    try:
        image, stored = _open(_Guarded(data, check), data, kind)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(
            "image_too_large",
            f"The image has far more than the {max_pixels} pixels allowed. Send a smaller one.",
            allowed_pixels=max_pixels,
        ) from error
    except ImportError as error:
        raise _invalid(
            f"{len(data)} bytes of {kind}, which this server reads only with pillow-heif "
            "installed, the extra comln-serve[heic]; convert the file",
            [name for name in formats if name != kind],
            received_format=kind,
        ) from error
    except StoppedError:
        raise
    except Exception as error:  # a hostile file can raise anything from a decoder
        why = f" ({error})" if isinstance(error, _RefusedError) else ""
        raise _invalid(
            f"a {kind} file of {len(data)} bytes that cannot be read; it is truncated, corrupt or "
            f"of a kind that is not supported{why}",
            formats,
            received_format=kind,
        ) from error
    width, height = image.size
    pixels = max(width * height, stored)
    described = f"a {kind} file of {len(data)} bytes, {width} x {height} pixels"
    if pixels > max_pixels:
        within = "" if pixels == width * height else ", within a stored picture or tile of"
        raise ImageError(
            "image_too_large",
            f"The image is {width} x {height}{within or ' ='} {pixels} pixels; at most "
            f"{max_pixels} are allowed. Send a smaller one.",
            received_pixels=pixels,
            allowed_pixels=max_pixels,
        )
    if image.mode in UNSUPPORTED:
        raise _invalid(
            f"{described}, whose samples are {UNSUPPORTED[image.mode]}; convert it to RGB or "
            "greyscale of 8 or 16 bits",
            formats,
            received_format=kind,
        )
    if enough is not None and kind == "JPEG":
        try:
            image.draft(None, (enough, enough))
        except Exception as error:
            raise _corrupt(described, str(error), formats) from error
    return ImageFile(image, kind, described, pixels, formats)


def decode_image(
    data: bytes,
    *,
    background: tuple[int, int, int] = (255, 255, 255),
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> Image.Image:
    """`open_image` and `ImageFile.decode` in one, at the image's own size.

    Raises:
        ImageError: as these.
    """
    return open_image(data, max_pixels=max_pixels).decode(background)


class _RefusedError(ValueError):
    """A file that its library is not given; the message says why."""


class _Guarded(io.BytesIO):
    """A file that can be taken away from the library that reads it."""

    def __init__(self, data: bytes, check: Callable[[], None]) -> None:
        super().__init__(data)
        self._check = check
        self.reads_left: float = _MOST_READS

    def read(self, size: int | None = -1, /) -> bytes:
        self._check()
        self.reads_left -= 1
        if self.reads_left < 0:
            raise _RefusedError("its header is in thousands of pieces")
        return super().read(size)


def _open(file: _Guarded, data: bytes, kind: str) -> tuple[Image.Image, int]:
    """The picture, not decoded yet, and how many pixels of it are stored at least."""
    stored = 0
    try:
        if kind in ("HEIC", "AVIF"):
            stored = announced_pixels(data)
        elif kind == "TIFF":
            page = read_page(data)
            if page.raw:
                raise _RefusedError("its first page is the preview of a raw file")
            stored = page.tile_pixels
        elif kind == "JPEG":
            if (scans := data.count(b"\xff\xda")) > _MOST_SCANS:
                raise _RefusedError(f"it has {scans} scans, at most {_MOST_SCANS} are allowed")
            if (start := data.find(_EXIF)) >= 0:  # read as soon as the file is opened
                _check_exif(data[start : start + _EXIF_SEGMENT])
    except ValueError as error:
        raise _RefusedError(str(error)) from error
    if kind != "HEIC":
        picture = Image.open(file, formats=[kind])
        _check_exif(picture.info.get("exif", b""))
        file.reads_left = math.inf
        return picture, stored
    # Imported here: many servers never see such a file. Its class is used as it is, for registering
    # it would change what Pillow opens in all of the process.
    from pillow_heif import HeifImageFile  # noqa: PLC0415

    return HeifImageFile(file), stored


def _corrupt(described: str, why: str, formats: Sequence[str]) -> ImageError:
    return _invalid(
        f"{described}, that cannot be decoded; it is truncated or corrupt ({why})", formats
    )


def _not_accepted(kind: str, size: int, formats: Sequence[str]) -> ImageError:
    what = "HEIC, the format of iPhone photos" if kind == "HEIC" else kind
    return _invalid(
        f"{size} bytes of {what}, while this server accepts {', '.join(formats)}; convert the file",
        formats,
        received_format=kind,
    )


def _invalid(received: str, formats: Sequence[str], **detail: str) -> ImageError:
    return ImageError(
        "invalid_image",
        f"Expected an image; received {received}.",
        allowed_formats=list(formats),
        **detail,
    )


def _upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation; broken EXIF data does not make a readable image unreadable."""
    with suppress(Exception):  # any damage to the EXIF block, of any kind
        ImageOps.exif_transpose(image, in_place=True)  # which else copies images that are upright
    return image


def _check_exif(exif: bytes) -> None:
    """Refuse a block that takes long to read: Pillow reads all entries, for the orientation.

    Raises:
        _RefusedError: its first directory announces too many entries.
    """
    tiff = exif.removeprefix(_EXIF)
    order = "<" if tiff.startswith(b"II") else ">"
    try:
        (offset,) = struct.unpack_from(f"{order}4xI", tiff)
        (entries,) = struct.unpack_from(f"{order}H", tiff, offset)
    except struct.error:  # broken, which does not make a readable image unreadable
        return
    if entries > _MOST_EXIF_ENTRIES:
        raise _RefusedError(
            f"its EXIF block has {entries} entries, at most {_MOST_EXIF_ENTRIES} are allowed"
        )
