"""From the bytes of an image file, as people have them, to an upright RGB picture."""

import io
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps

from comln_serve.errors import ErrorCode, ServiceError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
DEFAULT_MAX_PIXELS = 64_000_000
# Pillow itself refuses what is over twice its own limit of 89 million, whatever we would allow.
MOST_PIXELS = 178_000_000

_TO_8_BITS = ((np.arange(65536, dtype=np.uint32) + 128) // 257).astype(np.uint8)


@dataclass(frozen=True)
class ImageFile:
    """An image of which nothing but the header has been read.

    Attributes:
        picture: with the size that it will be decoded at.
        described: what was received, for messages.
        full_size: its pixels as they are stored.
    """

    picture: Image.Image
    described: str
    full_size: int

    @property
    def pixels(self) -> int:
        """That decoding has in memory at once."""
        if self.picture.format == "JPEG" and self.picture.info.get("progressive"):
            return self.full_size  # it keeps the coefficients of all until the last is there
        return self.picture.width * self.picture.height

    def decode(self, background: tuple[int, int, int] = (255, 255, 255)) -> Image.Image:
        """The first frame, upright, as 8-bit RGB. Once only.

        Transparent pixels are laid over `background`; 16-bit samples are scaled to 8 bits;
        palettes, greyscale and CMYK are converted.

        Raises:
            ServiceError: INVALID_IMAGE, it is truncated or corrupt.
        """
        try:
            self.picture.load()
            return _to_rgb(_upright(self.picture), background)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a hostile file can raise anything
            why = str(error)
        # Raised here, not above: what an error was raised from it keeps, with all these pixels.
        self.picture.close()
        raise _corrupt(self.described, why)


def open_image(
    data: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS, enough: int | None = None
) -> ImageFile:
    """Look at an image file without decoding it.

    Args:
        data: a whole JPEG, PNG, WebP, BMP or GIF file.
        max_pixels: width x height above which the file is refused.
        enough: shorter side, in pixels, beyond which detail will not be used; a JPEG will then be
            decoded at 1/2, 1/4 or 1/8 of its size, never below this.

    Raises:
        ServiceError: INVALID_IMAGE (not an image, or another format) or IMAGE_TOO_LARGE.
    """
    if not data:
        raise _invalid("the file is empty (0 bytes)")
    try:
        image = _open(data)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ServiceError(
            ErrorCode.IMAGE_TOO_LARGE,
            f"The image has far more than the {max_pixels} pixels allowed. Send a smaller one.",
            allowed_pixels=max_pixels,
        ) from error
    except Exception as error:  # a hostile file can raise anything from a decoder
        raise _invalid(
            f"{len(data)} bytes that are not a readable image in one of these formats: "
            f"{', '.join(FORMATS)}"
        ) from error
    width, height = image.size
    pixels = width * height
    if pixels > max_pixels:
        raise ServiceError(
            ErrorCode.IMAGE_TOO_LARGE,
            f"The image is {width} x {height} = {pixels} pixels; at most {max_pixels} are "
            "allowed. Send a smaller one.",
            received_pixels=pixels,
            allowed_pixels=max_pixels,
        )
    described = f"a {image.format} file of {len(data)} bytes, {width} x {height} pixels"
    if enough is not None and image.format == "JPEG":
        try:
            image.draft(None, (enough, enough))
        except Exception as error:
            raise _corrupt(described, str(error)) from error
    return ImageFile(image, described, pixels)


def decode_image(
    data: bytes,
    *,
    background: tuple[int, int, int] = (255, 255, 255),
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> Image.Image:
    """`open_image` and `ImageFile.decode` in one, at the image's own size.

    Raises:
        ServiceError: as these.
    """
    return open_image(data, max_pixels=max_pixels).decode(background)


def _corrupt(described: str, why: str) -> ServiceError:
    return _invalid(f"{described}, that cannot be decoded; it is truncated or corrupt ({why})")


def _invalid(received: str) -> ServiceError:
    return ServiceError(
        ErrorCode.INVALID_IMAGE,
        f"Expected an image; received {received}.",
        allowed_formats=list(FORMATS),
    )


def _open(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data), formats=FORMATS)


def _upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation; broken EXIF data does not make a readable image unreadable."""
    with suppress(Exception):  # any damage to the EXIF block, of any kind
        ImageOps.exif_transpose(image, in_place=True)  # which else copies images that are upright
    return image


def _to_rgb(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    if image.mode.startswith("I"):
        # 16-bit greyscale: Pillow's own conversion clips at 255 instead of scaling.
        samples = np.asarray(image.convert("I;16") if image.mode == "I" else image)
        key = image.info.get("transparency")
        image = Image.fromarray(_TO_8_BITS[samples], mode="L")
        if key is not None:
            image.putalpha(Image.fromarray(np.where(samples == key, 0, 255).astype(np.uint8)))
    if "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info:
        layer = image if image.mode == "RGBA" else image.convert("RGBA")
        canvas = Image.new("RGB", layer.size, background)
        canvas.paste(layer, mask=layer)  # in place: a copy of an image can be 256 MB
        image = canvas
    return image if image.mode == "RGB" else image.convert("RGB")  # which copies, too
