"""A perceptual hash of a photo, which shows whether two photos are nearly the same picture."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# A hash says nothing about an image whose neighbouring cells are equal in this share of the pairs:
# drawings on white paper, of which most would be nearly the same. docs/reports.md has the figures.
_FLAT = 0.25
_SIDE = 8


def difference_hash(pixels: NDArray[np.uint8]) -> int | None:
    """The 64-bit difference hash of an image (height, width, 3); None if the image is mostly flat.

    A bit says whether a cell of an 8 x 9 grid is darker than its right neighbour. Two photos of one
    scene, as the frames of a burst are, differ in few bits, whatever their brightness and sharpness.
    """
    grey = Image.fromarray(pixels).convert("L").resize((_SIDE + 1, _SIDE), Image.Resampling.BOX)
    steps = np.diff(np.asarray(grey, dtype=np.int16), axis=1)
    if (steps == 0).mean() >= _FLAT:
        return None
    return int.from_bytes(np.packbits(steps > 0).tobytes(), "big")
