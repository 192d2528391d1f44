"""A small JPEG of an image, by which people recognise it."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 96
# 3 kB of a photo, 6 kB of noise, which is the most that there can be.
_QUALITY = 70


def thumbnail(pixels: NDArray[np.uint8]) -> bytes:
    """A JPEG file of an image (side, side, 3): at most 96 x 96 pixels, and nothing else of the image's file."""
    image = Image.fromarray(pixels)
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_QUALITY, optimize=True, subsampling="4:2:0")
    return file.getvalue()
