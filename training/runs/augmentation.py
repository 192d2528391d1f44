"""Random crops, flips and colour jitter of a batch, on the device the images are on.

Random numbers are drawn with NumPy from a generator that is passed in, so equal seeds give equal
images on every device.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from training.config import AugmentationConfig

# Luma of RGB (ITU-R BT.601), what "grey" means to Pillow's ImageEnhance.
_LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Draw:
    """The augmentation of n images.

    Attributes:
        offsets: (n, 2) start of the crop in the padded image, from 0 to 2 padding.
        flips: (n,) whether it is mirrored.
        factors: (n, 3) of brightness, contrast and saturation; 1 changes nothing.
    """

    offsets: NDArray[np.intp]
    flips: NDArray[np.bool_]
    factors: NDArray[np.float32]

    def of(self, which: NDArray[np.intp]) -> "Draw":
        """The augmentation of some of the images."""
        return Draw(self.offsets[which], self.flips[which], self.factors[which])


def draw(rng: np.random.Generator, n: int, config: AugmentationConfig) -> Draw:
    """Draw the augmentation of n images; the same numbers are drawn whichever changes are enabled."""
    offsets = rng.integers(0, 2 * config.crop_padding + 1, size=(n, 2))
    flips = (rng.random(n) < 0.5) & config.flip
    factors = 1 + config.jitter * rng.uniform(-1, 1, size=(n, 3))
    return Draw(offsets, flips, factors.astype(np.float32))


def augment(images: Tensor, how: Draw, config: AugmentationConfig) -> Tensor:
    """Augmented copies of uint8 images (n, S, S, 3): crop and flip, then colour jitter.

    Colours change as by Pillow's ImageEnhance, in the order brightness, contrast, saturation: the
    image is mixed with black, with its mean grey, and with its greyscale version.
    """
    if config.crop_padding or config.flip:
        images = _crop(images, how, config.crop_padding)
    if config.jitter:
        images = _jitter(images, torch.from_numpy(how.factors).to(images.device))
    return images


def _crop(images: Tensor, how: Draw, padding: int) -> Tensor:
    size, device = images.shape[1], images.device
    padded = nn.functional.pad(images, (0, 0, padding, padding, padding, padding))
    steps = np.arange(size)
    rows = how.offsets[:, :1] + steps
    columns = how.offsets[:, 1:] + np.where(how.flips[:, None], steps[::-1], steps)
    picture = torch.arange(len(images), device=device)[:, None, None]
    row = torch.from_numpy(rows).to(device)[:, :, None]
    column = torch.from_numpy(columns).to(device)[:, None, :]
    return padded[picture, row, column]


def _jitter(images: Tensor, factors: Tensor) -> Tensor:
    brightness, contrast, saturation = factors.T[..., None, None, None]
    luma = torch.tensor(_LUMA, device=images.device)
    pixels = images.to(torch.float32).mul_(brightness).clamp_(0, 255)
    mean = (pixels @ luma).mean(dim=(1, 2))[:, None, None, None]
    pixels = torch.lerp(mean, pixels, contrast).clamp_(0, 255)
    grey = (pixels @ luma)[..., None]
    pixels = torch.lerp(grey, pixels, saturation).clamp_(0, 255)
    return pixels.round_().to(torch.uint8)
