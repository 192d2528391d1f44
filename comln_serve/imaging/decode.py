"""Decodes an image file to an upright RGB picture."""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from PIL import Image, JpegImagePlugin
from PIL.GifImagePlugin import GifImageFile

from comln_serve.imaging.boxes import announced_pixels
from comln_serve.imaging.colours import UNSUPPORTED, to_rgb
from comln_serve.imaging.errors import ImageError, StoppedError
from comln_serve.imaging.formats import FORMATS, not_accepted, recognise
from comln_serve.imaging.jpeg import passes
from comln_serve.imaging.orientation import TURNS, orientation
from comln_serve.imaging.png import unneeded_parts
from comln_serve.imaging.tiff import TiffPage

DEFAULT_MAX_PIXELS = 64_000_000
# Pillow refuses images of more than twice its own limit of 89 million pixels.
MOST_PIXELS = 178_000_000
# Reads to open a file: Pillow reads a header piece by piece, and padding byte by byte. To decode it, one more for each
# piece of so many bytes: a GIF has pieces of 256, which take two; behind the pixels of a PNG they may have 12.
_MOST_READS, _BYTES_OF_A_READ = 10_000, 64
# Pixels that a row counts as at least: Pillow keeps a pointer for each.
_LEAST_OF_A_ROW = 2
# Pillow decodes run-length encoded BMPs in Python: a million pixels take about a second, as 16 million of other files.
_MOST_IN_RUNS, _LIKE_A_RUN = 1_000_000, 16
_RUNS = (1, 2)  # values of a BMP's compression


@dataclass(frozen=True)
class ImageFile:
    """An image whose header alone has been read.

    Attributes:
        picture: its size is the one it will be decoded at.
        described: description of the file for error messages.
        pixels: memory that decoding takes, in pixels of up to 16 bytes; more if it takes far longer than that of as
            many pixels usually does.
        formats: the accepted formats, for error messages.
    """

    picture: Image.Image
    described: str
    pixels: int
    formats: Sequence[str]

    def decode(self, background: tuple[int, int, int] = (255, 255, 255)) -> Image.Image:
        """Decode the first page or frame (HEIC: the primary picture), upright, as 8-bit RGB.

        May be called once only.

        Transparent pixels are laid over `background`; samples of more bits are scaled to 8;
        palettes, greyscale and CMYK are converted.

        Raises:
            ImageError: the file is truncated or corrupt.
            StoppedError: the file's `check` raised it.
        """
        try:
            self.picture.load()
            return to_rgb(_upright(self.picture), background)
        except (MemoryError, StoppedError):
            raise
        except Exception as error:  # noqa: BLE001 - a hostile file can raise anything
            why = str(error)
        # Raised outside the handler: a chained error would keep all these pixels in memory.
        self.picture.close()
        raise _invalid(f"{self.described}, that cannot be decoded; it is truncated or corrupt ({why})", self.formats)


def open_image(
    data: bytes,
    *,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    enough: int | None = None,
    formats: Sequence[str] = FORMATS,
    check: Callable[[], None] = lambda: None,
) -> ImageFile:
    """Read the header of an image file, without decoding it.

    Args:
        data: a whole file.
        max_pixels: width x height above which the file is refused.
        enough: length of the shorter side, in pixels, beyond which more detail is not needed: a
            larger JPEG will be decoded at 1/2, 1/4 or 1/8 of its size, never below this.
        formats: the accepted ones of `FORMATS`.
        check: called whenever the file is read, also during decoding; it raises StoppedError to stop.

    Raises:
        ImageError: the file is not an image, has another format, or is too large.
        StoppedError: `check` raised it.
    """
    if not data:
        raise _invalid("an empty file (0 bytes)", formats)
    kind = recognise(data)
    if kind is None:
        raise _invalid(
            f"{len(data)} bytes that are not a readable image in one of these formats: {', '.join(formats)}", formats
        )
    if kind not in formats:
        raise not_accepted(kind, len(data), formats)
    try:
        image, stored, times = _open(data, kind, check)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(
            "image_too_large",
            f"The image has far more than the {max_pixels} pixels allowed. Send a smaller one.",
            allowed_pixels=max_pixels,
        ) from error
    except ImportError as error:
        raise not_accepted(kind, len(data), [name for name in formats if name != kind]) from error
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
    rows = _LEAST_OF_A_ROW * height
    pixels = max(width * height, stored, rows)
    described = f"a {kind} file of {len(data)} bytes, {width} x {height} pixels"
    if pixels > max_pixels:
        if pixels == width * height:
            counted = " ="
        elif pixels == rows:
            counted = f", whose rows count as {_LEAST_OF_A_ROW} pixels each:"
        else:
            counted = ", within a stored picture or tile of"
        raise ImageError(
            "image_too_large",
            f"The image is {width} x {height}{counted} {pixels} pixels; at most "
            f"{max_pixels} are allowed. Send a smaller one.",
            received_pixels=pixels,
            allowed_pixels=max_pixels,
        )
    if image.mode in UNSUPPORTED:
        raise _invalid(
            f"{described}, whose samples are {UNSUPPORTED[image.mode]}; convert it to RGB or greyscale of 8 or 16 bits",
            formats,
            received_format=kind,
        )
    if enough is not None and kind == "JPEG":
        image.draft(None, (enough, enough))
    return ImageFile(image, described, _decoded_pixels(image, kind, pixels, times), formats)


class _RefusedError(ValueError):
    """The file must not be given to its library; the message says why."""


class _Guarded(io.BytesIO):
    """A file whose reads `check` can stop, whose number of reads is limited, and parts of which are skipped."""

    def __init__(self, data: bytes, check: Callable[[], None], skipped: Mapping[int, int]) -> None:
        """`skipped` has the end of each part that is skipped by its start, where a read has to begin."""
        super().__init__(data)
        self._check, self._skipped = check, skipped
        self.reads_left: float = _MOST_READS

    def read(self, size: int | None = -1, /) -> bytes:
        self._check()
        self.reads_left -= 1
        if self.reads_left < 0:
            raise _RefusedError("its header is in thousands of pieces")
        if (end := self._skipped.get(self.tell())) is not None:
            self.seek(end)
        return super().read(size)


class _FirstFrame(GifImageFile):
    """The first frame of a GIF. What is to be done with it before a second one is ignored: Pillow makes a picture for
    that when it opens the file, a byte a pixel, and a large image would wait with it.
    """

    @property
    def disposal_method(self) -> int:
        return 0

    @disposal_method.setter
    def disposal_method(self, value: int) -> None:
        pass


def _open(data: bytes, kind: str, check: Callable[[], None]) -> tuple[Image.Image, int, int]:
    """Open the picture without decoding it.

    Also returns a lower bound of its stored pixels, and how often each of them counts: 0 if the picture is decoded row
    by row at its reduced size.
    """
    stored, times, skipped = 0, 1, dict[int, int]()
    try:
        if kind in ("HEIC", "AVIF"):
            stored = announced_pixels(data)
        elif kind == "TIFF":
            page = TiffPage(data)
            if page.raw:
                raise _RefusedError("its first page is the preview of a raw file")
            stored = page.tile_pixels
        elif kind == "JPEG":
            times = passes(data)
        elif kind == "PNG":
            skipped = unneeded_parts(data)
    except ValueError as error:
        raise _RefusedError(str(error)) from error
    file = _Guarded(data, check, skipped)
    if kind != "HEIC":
        picture = _FirstFrame(file) if kind == "GIF" else Image.open(file, formats=[kind])
        _drop_profile(picture)
        if kind == "BMP" and picture.info["compression"] in _RUNS:
            if picture.width * picture.height > _MOST_IN_RUNS:
                raise _RefusedError(f"it is compressed in runs, and has more than {_MOST_IN_RUNS} pixels")
            times = _LIKE_A_RUN
        # A BMP in runs is read two bytes at a time, if it is not too large.
        file.reads_left = math.inf if kind == "BMP" else _MOST_READS + len(data) / _BYTES_OF_A_READ
        return picture, stored, times
    # Imported here, as many servers never receive HEIC. The class is used directly, as registering
    # it would change what Pillow opens in the whole process.
    from comln_serve.imaging.heic import PrimaryPicture  # noqa: PLC0415

    return PrimaryPicture(file), stored, times


def _decoded_pixels(image: Image.Image, kind: str, stored: int, times: int) -> int:
    """`ImageFile.pixels`.

    Args:
        stored: pixels of the picture before a HEIC or AVIF picture is cropped, or a JPEG reduced; or of one tile of a
            TIFF file if that is larger than the picture.
        times: from `_open`.
    """
    if times == 0:
        return image.width * image.height
    # All others are decoded whole. Samples of 10 or 12 bits take 16 bits first; AVIF files do not tell beforehand.
    deep = kind == "AVIF" or (kind == "HEIC" and image.info.get("bit_depth", 8) > 8)
    return stored * times * 3 // 2 if deep else stored * times


def _drop_profile(image: Image.Image) -> None:
    """Forget the colour profile, which is ignored, and a JPEG's copies of its segments: each may be as large as the
    file, and a large image waits with them.
    """
    image.info.pop("icc_profile", None)
    if isinstance(image, JpegImagePlugin.JpegImageFile):
        image.app.clear()
        image.applist.clear()
        image.icclist.clear()


def _invalid(received: str, formats: Sequence[str], **detail: str) -> ImageError:
    return ImageError(
        "invalid_image", f"Expected an image; received {received}.", allowed_formats=list(formats), **detail
    )


def _upright(image: Image.Image) -> Image.Image:
    """Turn a picture as its EXIF or XMP data say; the original is closed if it is turned."""
    method = TURNS.get(orientation(image.info))
    if method is None:
        return image
    turned = image.transpose(method)
    image.close()
    return turned
