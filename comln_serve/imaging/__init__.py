"""Images as people have them, brought to what a backbone takes."""

from comln_serve.imaging.decode import DEFAULT_MAX_PIXELS, FORMATS, decode_image
from comln_serve.imaging.preprocessing import Preprocessing, prepare_image

__all__ = ["DEFAULT_MAX_PIXELS", "FORMATS", "Preprocessing", "decode_image", "prepare_image"]
