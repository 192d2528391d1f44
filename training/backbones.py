"""Embedding networks f_Phi, from uint8 images to embeddings."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from training.config import BackboneConfig


class Conv4(nn.Sequential):
    """The paper's Conv-4: 4 x [3x3 convolution, batch norm, ReLU, 2x2 max-pool], flattened.

    ReLU and max-pool commute, values and gradients alike; pooling first leaves ReLU a quarter of
    the work.

    (B, channels_in, S, S) -> (B, d) with d = channels (S // 16)^2: 64 at 28 px, 1600 at 84 px.
    """

    def __init__(self, channels_in: int, channels: int) -> None:
        blocks = [
            nn.Sequential(
                nn.Conv2d(channels_in if i == 0 else channels, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.MaxPool2d(2),
                nn.ReLU(),
            )
            for i in range(4)
        ]
        super().__init__(*blocks, nn.Flatten())


class ResidualBlock(nn.Module):
    """3 x [3x3 convolution, batch norm] beside a 1x1 convolution; ends in a 2x2 max-pool.

    LeakyReLU(0.1) after the first two convolutions and after the sum. Like ReLU it commutes with
    the max-pool.
    """

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()

        def convolution(size: int, inputs: int) -> list[nn.Module]:
            return [
                nn.Conv2d(inputs, channels, size, padding=size // 2, bias=False),
                nn.BatchNorm2d(channels),
            ]

        self.residual = nn.Sequential(
            *convolution(3, channels_in),
            nn.LeakyReLU(0.1),
            *convolution(3, channels),
            nn.LeakyReLU(0.1),
            *convolution(3, channels),
        )
        self.shortcut = nn.Sequential(*convolution(1, channels_in))

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels_in, S, S) -> (B, channels, S // 2, S // 2)."""
        total = self.residual(x) + self.shortcut(x)
        return nn.functional.leaky_relu(nn.functional.max_pool2d(total, 2), 0.1)


class ResNet12(nn.Sequential):
    """The paper's ResNet-12: four residual blocks of 1, 2.5, 5 and 10 times `channels`, flattened.

    Without global pooling (B, channels_in, S, S) -> (B, 10 channels (S // 16)^2): 16000 at 84 px
    with 64 channels, as in the paper. With it, (B, 10 channels).
    """

    def __init__(self, channels_in: int, channels: int, *, global_pooling: bool) -> None:
        widths = [channels_in, channels, 5 * channels // 2, 5 * channels, 10 * channels]
        blocks: list[nn.Module] = [ResidualBlock(*pair) for pair in pairwise(widths)]
        if global_pooling:
            blocks.append(nn.AdaptiveAvgPool2d(1))
        super().__init__(*blocks, nn.Flatten())


class Backbone(nn.Module):
    """What a bundle exports: uint8 RGB images (B, S, S, 3) -> embeddings (B, d) float32.

    Scaling, colour and normalisation are part of the network, so that whoever runs the exported
    graph feeds it the trainer's pixels.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: BackboneConfig, image_size: int) -> None:
        super().__init__()
        if image_size < 16:
            raise ValueError(
                f"{config.kind} halves the image four times: 16 px at least, got {image_size}"
            )
        channels_in = 3 if config.colour == "rgb" else 1
        self.grey = config.colour == "grey"
        if config.kind == "conv4":
            self.network: nn.Module = Conv4(channels_in, config.channels)
            width = config.channels
        else:
            self.network = ResNet12(
                channels_in, config.channels, global_pooling=config.global_pooling
            )
            width = 10 * config.channels
        self.image_size = image_size
        self.embedding_size = width * (1 if config.global_pooling else (image_size // 16) ** 2)
        self.scale = 1.0 / math.sqrt(self.embedding_size) if config.scale == "sqrt_d" else 1.0
        shape = (1, channels_in, 1, 1)
        self.register_buffer("mean", torch.tensor(config.mean).reshape(shape), persistent=False)
        self.register_buffer("std", torch.tensor(config.std).reshape(shape), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        x = images.permute(0, 3, 1, 2).to(torch.float32) / 255.0
        if self.grey:
            x = x.mean(dim=1, keepdim=True)
        embeddings: Tensor = self.network((x - self.mean) / self.std)
        return embeddings * self.scale
