"""The bundle's resize-and-crop policy: the only path from a file to the backbone's input.

The trainer builds its arrays with this module, and the server prepares uploads with the same
code, so a model gets the same pixels in both. The ONNX graph scales to floats and normalises.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, model_validator

from comln_serve.imaging.decode import ImageFile, open_image
from comln_serve.imaging.formats import FORMATS

# A side is first reduced, by means of neighbouring pixels, so far that at most about twice as many pixels become one.
# Pillow's filter keeps weights for each pixel of a side: gigabytes, for an image that is a line of 64 million.
_MOST_TO_ONE = 256

LEAST_SIDE, MOST_SIDE = 8, 1024  # of the square, in pixels

Channel = Annotated[int, Field(ge=0, le=255)]
Share = Annotated[float, Field(ge=0.25, le=1)]


class Preprocessing(BaseModel):
    """How an image of any size becomes (image_size, image_size, 3) uint8 RGB.

    Attributes:
        image_size: side of the square the backbone takes, in pixels.
        resize: "crop" scales the largest centred square; "pad" scales the whole image and fills the
            rest with the background; "stretch" ignores the aspect ratio.
        crop_fraction: share of that square's side which is kept, around its centre; only with "crop". Networks
            trained on ImageNet are usually evaluated with 0.875 (scale to 256 pixels, crop to 224).
        support_views: the shares of further views of a support image, each an example of its own beside the one of
            `crop_fraction`, which is all that predictions see; only with "crop". Of a large JPEG, decoded at a reduced
            size, those of less than half of `crop_fraction` are enlarged.
        interpolation: resampling filter, with antialiasing.
        background: RGB under transparent pixels and beside padded images.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    image_size: int = Field(ge=LEAST_SIDE, le=MOST_SIDE)
    resize: Literal["crop", "pad", "stretch"] = "crop"
    # The next two are left out at their defaults: older bundles lack them, and keep their hashes.
    crop_fraction: Annotated[Share, Field(exclude_if=lambda share: share == 1.0)] = 1.0
    support_views: Annotated[tuple[Share, ...], Field(max_length=7, exclude_if=lambda shares: not shares)] = ()
    interpolation: Literal["bilinear", "bicubic", "lanczos"] = "bilinear"
    background: tuple[Channel, Channel, Channel] = (255, 255, 255)

    @model_validator(mode="after")
    def _only_of_a_crop(self) -> Self:
        if self.crop_fraction != 1.0 and self.resize != "crop":
            raise ValueError(f'crop_fraction needs resize "crop", got "{self.resize}"')
        if self.support_views and self.resize != "crop":
            raise ValueError(f'support_views needs resize "crop", got "{self.resize}"')
        if len(set(self.shares)) < len(self.shares):
            shown = ", ".join(f"{share:g}" for share in self.support_views)
            raise ValueError(f"support_views must differ from each other and from crop_fraction, got {shown}")
        return self

    @property
    def shares(self) -> tuple[float, ...]:
        """(V,) `crop_fraction` and `support_views`."""
        return (self.crop_fraction, *self.support_views)

    @property
    def of_predictions(self) -> Self:
        """The same policy with the first view alone."""
        return self.model_copy(update={"support_views": ()})

    @property
    def enough(self) -> int:
        """For `open_image`: a JPEG decoded at a reduced size keeps twice the needed pixels on its shorter side."""
        return math.ceil(2 * self.image_size / self.crop_fraction)


def prepare_views(data: bytes, policy: Preprocessing, *, formats: Sequence[str] = FORMATS) -> NDArray[np.uint8]:
    """Decode an image file and apply the policy: all its views (V, image_size, image_size, 3) uint8 RGB.

    Args:
        formats: the accepted ones of `FORMATS`.

    Raises:
        ImageError: as `open_image` and `ImageFile.decode`.
    """
    return fit_views(open_image(data, enough=policy.enough, formats=formats), policy, len(policy.shares))


def fit_views(file: ImageFile, policy: Preprocessing, count: int) -> NDArray[np.uint8]:
    """Decode an opened file and apply the policy: its first views (count, image_size, image_size, 3) uint8 RGB.

    Raises:
        ImageError, StoppedError: as `ImageFile.decode`.
    """
    return _views(file.decode(policy.background), policy, count)


def pixel_views(pixels: NDArray[np.uint8], policy: Preprocessing) -> NDArray[np.uint8]:
    """All views of a decoded RGB image (height, width, 3): (V, image_size, image_size, 3)."""
    return _views(Image.fromarray(pixels), policy, len(policy.shares))


def _views(image: Image.Image, policy: Preprocessing, count: int) -> NDArray[np.uint8]:
    return np.stack([np.asarray(_fit(image, policy, share), dtype=np.uint8) for share in policy.shares[:count]])


def _fit(image: Image.Image, policy: Preprocessing, share: float) -> Image.Image:
    size, resampling = policy.image_size, Image.Resampling[policy.interpolation.upper()]
    width, height = image.size
    if policy.resize == "stretch":
        return image.resize((size, size), resampling, reducing_gap=_MOST_TO_ONE)
    if policy.resize == "crop":
        # Crops and scales in one operation: scaling first would enlarge very long images.
        side = min(width, height) * share
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
        return image.resize((size, size), resampling, box=box)
    scale = size / max(width, height)
    inner = (max(1, round(width * scale)), max(1, round(height * scale)))
    canvas = Image.new("RGB", (size, size), policy.background)
    scaled = image.resize(inner, resampling, reducing_gap=_MOST_TO_ONE)
    canvas.paste(scaled, ((size - inner[0]) // 2, (size - inner[1]) // 2))
    return canvas
