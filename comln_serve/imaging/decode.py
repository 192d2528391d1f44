"""From the bytes of an image file, as people have them, to an upright RGB picture."""

import io
from contextlib import suppress

import numpy as np
from PIL import Image, ImageOps

from comln_serve.errors import ErrorCode, ServiceError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
DEFAULT_MAX_PIXELS = 64_000_000
# Pillow itself refuses what is over twice its own limit of 89 million, whatever we would allow.
MOST_PIXELS = 178_000_000

_TO_8_BITS = ((np.arange(65536, dtype=np.uint32) + 128) // 257).astype(np.uint8)


def decode_image(
    data: bytes,
    *,
    background: tuple[int, int, int] = (255, 255, 255),
    max_pixels: int = DEFAULT_MAX_PIXELS,
    enough: int | None = None,
) -> Image.Image:
    """Decode the first frame, apply the EXIF orientation and bring it to 8-bit RGB.

    Transparent pixels are laid over `background`; 16-bit samples are scaled to 8 bits; palettes,
    greyscale and CMYK are converted.

    Args:
        data: a whole JPEG, PNG, WebP, BMP or GIF file.
        background: RGB under transparent pixels.
        max_pixels: width x height above which the file is refused, before it is decoded.
        enough: shorter side, in pixels, beyond which detail will not be used; a JPEG is then
            decoded at 1/2, 1/4 or 1/8 of its size, never below this.

    Raises:
        ServiceError: INVALID_IMAGE (not an image, another format, truncated or corrupt) or
            IMAGE_TOO_LARGE.
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
    if width * height > max_pixels:
        raise ServiceError(
            ErrorCode.IMAGE_TOO_LARGE,
            f"The image is {width} x {height} = {width * height} pixels; at most {max_pixels} are "
            "allowed. Send a smaller one.",
            received_pixels=width * height,
            allowed_pixels=max_pixels,
        )
    try:
        if enough is not None and image.format == "JPEG":
            image.draft(None, (enough, enough))
        image.load()
        return _to_rgb(_upright(image), background)
    except MemoryError:
        raise
    except Exception as error:  # as above: the decoder has seen only the header so far
        raise _invalid(
            f"a {image.format} file of {len(data)} bytes, {width} x {height} pixels, that cannot "
            f"be decoded; it is truncated or corrupt ({error})"
        ) from error


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
        layer = image.convert("RGBA")
        canvas = Image.new("RGBA", layer.size, (*background, 255))
        canvas.alpha_composite(layer)
        image = canvas
    return image if image.mode == "RGB" else image.convert("RGB")  # which copies, too
