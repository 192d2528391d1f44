"""DropBlock (Ghiasi et al. 2018, arXiv 1810.12890), annealed as MetaOptNet does."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.config import DropBlockConfig
from training.errors import BackboneError


class DropBlock(nn.Module):
    """Zeroes square blocks of a feature map in training; passes it unchanged in evaluation.

    At every position where a block fits it is dropped with probability gamma, independently for each
    channel and example. The rest is scaled by the number of positions over the number kept, which
    preserves the mean. The rate grows linearly from 0 to `config.rate` over `config.updates` updates.

    Attributes:
        updates: () int64, training batches seen; part of the state, so that a resumed run continues with the same rate.
    """

    updates: Tensor

    def __init__(self, config: DropBlockConfig, size: int) -> None:
        """Drop blocks of feature maps with size x size positions; BackboneError if a block is larger."""
        super().__init__()
        if config.block_size > size:
            raise BackboneError(
                f"drop_block.block_size is {config.block_size}, but one of the feature maps has "
                f"{size} x {size} positions; use {size} at most, or larger images"
            )
        self.config, self.size = config, size
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    @property
    def rate(self) -> Tensor:
        """Current share of the positions to drop (0-dimensional)."""
        grown = self.updates * (self.config.rate / self.config.updates)
        return grown.clamp(max=self.config.rate)

    @property
    def gamma(self) -> Tensor:
        """Probability that a block starts at a position: equation 1 of the DropBlock paper."""
        block, size = self.config.block_size, self.size
        return self.rate / block**2 * (size**2 / (size - block + 1) ** 2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, size, size) -> the same shape."""
        if not self.training:
            return x
        self.updates += 1
        block = self.config.block_size
        places = self.size - block + 1
        corners = torch.rand(*x.shape[:2], places, places, device=x.device) < self.gamma
        # A position is dropped if any block that covers it is dropped.
        dropped = functional.max_pool2d(functional.pad(corners.to(x.dtype), [block - 1] * 4), block, stride=1)
        kept = 1 - dropped
        # Counted in float32: bfloat16 cannot count beyond 256.
        scale = kept.numel() / kept.sum(dtype=torch.float32).clamp(min=1)
        return x * kept * scale.to(x.dtype)
