"""Images as people have them, brought to what a backbone takes."""

from comln_serve.imaging.decode import (
    DEFAULT_MAX_PIXELS,
    MOST_PIXELS,
    decode_image,
    open_image,
)
from comln_serve.imaging.formats import FORMATS, parse_formats
from comln_serve.imaging.preprocessing import Preprocessing, prepare_image, prepare_pixels

__all__ = [
    "DEFAULT_MAX_PIXELS",
    "FORMATS",
    "MOST_PIXELS",
    "Preprocessing",
    "decode_image",
    "open_image",
    "parse_formats",
    "prepare_image",
    "prepare_pixels",
]
