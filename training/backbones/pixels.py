"""Conversion of uint8 images to a network's input, in torch."""

import torch
from torch import Tensor, nn

from training.backbones.pixel_format import PixelFormat
from training.errors import BackboneError


class Pixels(nn.Module):
    """uint8 RGB images (B, S, S, 3) -> normalised colour planes (B, C, S, S) float32, as `PixelFormat.planes`."""

    _mean: Tensor
    _std: Tensor

    def __init__(self, taken: PixelFormat) -> None:
        super().__init__()
        self.format = taken
        shape = (1, len(taken.mean), 1, 1)
        self.register_buffer("_mean", torch.tensor(taken.mean).reshape(shape), persistent=False)
        self.register_buffer("_std", torch.tensor(taken.std).reshape(shape), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        check_images(images, self.format.image_size)
        x = images.permute(0, 3, 1, 2).to(torch.float32) / 255.0
        if self.format.colour == "grey":
            x = x.mean(dim=1, keepdim=True)
        elif self.format.colour == "bgr":
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
