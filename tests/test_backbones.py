"""Embedding networks against what the paper says of them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from training.backbones import Backbone, ResidualBlock
from training.config import BackboneConfig


@pytest.mark.parametrize(
    ("kind", "global_pooling", "size", "parameters"),
    [
        ("conv4", False, 1600, 112_832),
        ("resnet12", False, 16_000, 12_424_320),
        ("resnet12", True, 640, 12_424_320),
    ],
)
def test_sizes_at_84_pixels(kind: str, global_pooling: bool, size: int, parameters: int) -> None:
    """d = 1600 and 16000 as in the paper; ResNet-12 has 12.4 million weights."""
    config = BackboneConfig.model_validate({"kind": kind, "global_pooling": global_pooling})
    backbone = Backbone(config, 84).eval()
    assert sum(p.numel() for p in backbone.parameters()) == parameters
    with torch.no_grad():
        embeddings = backbone(torch.zeros(2, 84, 84, 3, dtype=torch.uint8))
    assert embeddings.shape == (2, size)
    assert backbone.embedding_size == size


def test_a_residual_block_pools_after_the_last_activation() -> None:
    """Written as in the paper: sum, LeakyReLU(0.1), max-pool."""
    block = ResidualBlock(3, 8).eval()
    x = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    layers = list(block.residual)
    assert [type(layer) for layer in layers] == [
        nn.Conv2d, nn.BatchNorm2d, nn.LeakyReLU, nn.Conv2d, nn.BatchNorm2d, nn.LeakyReLU,
        nn.Conv2d, nn.BatchNorm2d,
    ]  # fmt: skip
    expected = F.max_pool2d(F.leaky_relu(block.residual(x) + block.shortcut(x), 0.1), 2)
    torch.testing.assert_close(block(x), expected)
