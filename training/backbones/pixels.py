"""Conversion of uint8 images to a network's input."""

import torch
from torch import Tensor, nn

from training.backbones.errors import BackboneError
from training.config import BackboneConfig


class Pixels(nn.Module):
    """uint8 RGB images (B, S, S, 3) -> normalised colour planes (B, C, S, S) float32.

    Attributes:
        mean, std: C values each, of pixel values in [0, 1].
    """

    _mean: Tensor
    _std: Tensor

    def __init__(self, colour: str, image_size: int, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.colour, self.image_size = colour, image_size
        self.mean, self.std = mean, std
        shape = (1, len(mean), 1, 1)
        self.register_buffer("_mean", torch.tensor(mean).reshape(shape), persistent=False)
        self.register_buffer("_std", torch.tensor(std).reshape(shape), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        check_images(images, self.image_size)
        x = images.permute(0, 3, 1, 2).to(torch.float32) / 255.0
        if self.colour == "grey":
            x = x.mean(dim=1, keepdim=True)
        elif self.colour == "bgr":
            x = x.flip(1)
        return (x - self._mean) / self._std


def check_images(images: Tensor, size: int) -> None:
    """Raise BackboneError unless `images` are uint8 (B, size, size, 3)."""
    if images.dtype != torch.uint8 or tuple(images.shape[1:]) != (size, size, 3):
        advice = ""
        if images.ndim == 2:
            advice = '; for data that are already embeddings, set backbone.kind to "identity"'
        raise BackboneError(
            f"the backbone takes uint8 images (n, {size}, {size}, 3); got {images.dtype} {tuple(images.shape)}{advice}"
        )


def default_normalisation(config: BackboneConfig) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of the recipe, or the defaults for networks with random weights."""
    if config.mean is not None and config.std is not None:
        return config.mean, config.std
    return (0.5,) * config.channels_in, (0.25,) * config.channels_in
