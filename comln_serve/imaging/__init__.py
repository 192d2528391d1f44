"""Turns image files as users have them into the input of a backbone."""

from comln_serve.imaging.decode import DEFAULT_MAX_PIXELS, MOST_PIXELS, ImageFile, open_image
from comln_serve.imaging.errors import ImageError, StoppedError
from comln_serve.imaging.formats import FORMATS, parse_formats, readable
from comln_serve.imaging.hashing import difference_hash
from comln_serve.imaging.preprocessing import Preprocessing, fit_views, pixel_views, prepare_views
from comln_serve.imaging.thumbnail import thumbnail

__all__ = [
    "DEFAULT_MAX_PIXELS",
    "FORMATS",
    "MOST_PIXELS",
    "ImageError",
    "ImageFile",
    "Preprocessing",
    "StoppedError",
    "difference_hash",
    "fit_views",
    "open_image",
    "parse_formats",
    "pixel_views",
    "prepare_views",
    "readable",
    "thumbnail",
]
