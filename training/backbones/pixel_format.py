"""The pixels that a network takes: their colours and normalisation."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.config import BackboneConfig


@dataclass(frozen=True)
class PixelFormat:
    """How uint8 RGB images become a network's input.

    Attributes:
        colour: "rgb", "bgr" or "grey", the mean of the three.
        image_size: S in pixels.
        mean, std: C values each, of pixel values in [0, 1].
    """

    colour: str
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def planes(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Normalised colour planes (B, C, S, S) of images (B, S, S, 3)."""
        x = images.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
        if self.colour == "grey":
            x = x.mean(axis=1, keepdims=True)
        elif self.colour == "bgr":
            x = x[:, ::-1]
        mean, std = (np.array(values, dtype=np.float32)[:, None, None] for values in (self.mean, self.std))
        return (x - mean) / std


def default_normalisation(config: BackboneConfig) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of the recipe, or the defaults for networks with random weights."""
    if config.mean is not None and config.std is not None:
        return config.mean, config.std
    return (0.5,) * config.channels_in, (0.25,) * config.channels_in
