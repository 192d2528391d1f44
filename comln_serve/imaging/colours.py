"""Converts a decoded picture to 8-bit RGB."""

import numpy as np
from PIL import Image, TiffImagePlugin

# Modes whose samples do not define black and white, or the colours.
UNSUPPORTED = {
    "I": "whole numbers of 32 bits, or with a sign",
    "F": "floating-point numbers",
    "LAB": "colours of the space L*a*b*",
}

_TO_8_BITS = ((np.arange(65536, dtype=np.uint32) + 128) // 257).astype(np.uint8)
_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0


def to_rgb(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """Convert a picture to 8-bit RGB. Transparent pixels are laid over `background`.

    16-bit samples are scaled; palettes, greyscale and CMYK are converted.
    """
    if image.mode.startswith("I;16"):
        image = _scaled(image)
    if image.mode == "La":
        image = image.convert("LA")  # as Pillow cannot convert La to RGBA
    if "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info:
        layer = image if image.mode == "RGBA" else image.convert("RGBA")
        canvas = Image.new("RGB", layer.size, background)
        canvas.paste(layer, mask=layer)  # in place: a copy of an image can be 256 MB
        image = canvas
    return image if image.mode == "RGB" else image.convert("RGB")  # would copy RGB, too


def _scaled(image: Image.Image) -> Image.Image:
    """Scale 16-bit greyscale to 8 bits: Pillow's own conversion clips at 255 instead."""
    samples, key = np.asarray(image), image.info.get("transparency")
    table = _TO_8_BITS
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        if image.tag_v2.get(_BITS_PER_SAMPLE) == (12,):
            table = _TO_8_BITS[np.arange(4096) * 65535 // 4095]
        if image.tag_v2.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:  # Pillow applies it up to 8 bits only
            table = 255 - table
    scaled = Image.fromarray(table[samples], mode="L")
    if key is not None:
        scaled.putalpha(Image.fromarray(np.where(samples == key, 0, 255).astype(np.uint8)))
    return scaled
