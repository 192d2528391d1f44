"""The paper's ResNet-12."""

from itertools import pairwise

from torch import Tensor, nn

from training.backbones.dropblock import DropBlock
from training.config import DropBlockConfig


class ResidualBlock(nn.Module):
    """3 x [3x3 convolution, batch norm] plus a 1x1 convolution as shortcut, then a 2x2 max-pool.

    LeakyReLU(0.1) follows the first two convolutions and the sum; the last is applied after the
    max-pool, with the same result.
    """

    def __init__(self, channels_in: int, channels: int, drop_block: DropBlock | None = None) -> None:
        super().__init__()

        def convolution(size: int, inputs: int) -> list[nn.Module]:
            return [nn.Conv2d(inputs, channels, size, padding=size // 2, bias=False), nn.BatchNorm2d(channels)]

        self.residual = nn.Sequential(
            *convolution(3, channels_in),
            nn.LeakyReLU(0.1),
            *convolution(3, channels),
            nn.LeakyReLU(0.1),
            *convolution(3, channels),
        )
        self.shortcut = nn.Sequential(*convolution(1, channels_in))
        self.drop_block = drop_block

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels_in, S, S) -> (B, channels, S // 2, S // 2)."""
        total = self.residual(x) + self.shortcut(x)
        x = nn.functional.leaky_relu(nn.functional.max_pool2d(total, 2), 0.1)
        return x if self.drop_block is None else self.drop_block(x)


class ResNet12(nn.Sequential):
    """Four residual blocks of 1, 2.5, 5 and 10 times `channels`, flattened.

    Without global pooling (B, channels_in, S, S) -> (B, 10 channels (S // 16)^2): 16000 at 84 px with 64 channels, as
    in the paper. With it, (B, 10 channels). DropBlock, if configured, follows the last two blocks.
    """

    def __init__(
        self,
        channels_in: int,
        channels: int,
        image_size: int,
        *,
        global_pooling: bool,
        drop_block: DropBlockConfig | None = None,
    ) -> None:
        widths = [channels_in, channels, 5 * channels // 2, 5 * channels, 10 * channels]
        drops: dict[int, DropBlock] = {}
        if drop_block is not None:
            # The smallest map is checked first, as it limits the size of a block.
            drops = {i: DropBlock(drop_block, image_size // 2 ** (i + 1)) for i in (3, 2)}
        blocks: list[nn.Module] = [ResidualBlock(*pair, drops.get(i)) for i, pair in enumerate(pairwise(widths))]
        if global_pooling:
            blocks.append(nn.AdaptiveAvgPool2d(1))
        super().__init__(*blocks, nn.Flatten())
