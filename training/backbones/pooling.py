"""Pooling of feature maps that gives the centre of an image more weight than its edges.

Photos of a thing have it in their middle more often than at their edge. The mean over all positions, which networks
trained on ImageNet end with, gives background at the edges as much weight as the thing.
"""

import torch
from torch import Tensor, nn

from training.backbones.centre import LEAST, centre_weights


class CentrePooling(nn.Module):
    """Weighted power means over positions: (B, C, H, W) -> (B, C), or (B, C, 1, 1) if `keep_dimensions`.

    The weights are those of `centre_weights`.
    """

    def __init__(self, sigma: float, power: float = 1.0, *, keep_dimensions: bool = False) -> None:
        """Set width and power.

        Args:
            power: p of (sum of weight x^p)^(1/p), for maps without negative numbers, which count as 0; 1: the weighted
                mean, for any maps.
        """
        super().__init__()
        self.sigma, self.power, self.keep_dimensions = sigma, power, keep_dimensions

    def forward(self, maps: Tensor) -> Tensor:
        weights = torch.from_numpy(centre_weights(maps.shape[2], maps.shape[3], self.sigma)).to(maps.device)
        maps = maps.float()  # powers of numbers in 16 bits would overflow
        if self.power == 1.0:
            return (maps * weights).sum(dim=(2, 3), keepdim=self.keep_dimensions)
        powers = (maps.clamp(min=0) ** self.power * weights).sum(dim=(2, 3), keepdim=self.keep_dimensions)
        return powers.clamp(min=LEAST) ** (1 / self.power)
