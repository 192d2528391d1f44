"""The paper's Conv-4."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.config.backbone import ReadoutConfig


class Conv4(nn.Sequential):
    """4 x [3x3 convolution, batch norm, ReLU, 2x2 max-pool], flattened.

    Pooling comes before ReLU: values and gradients are the same, and ReLU has a quarter of the work.

    Without `last_relu` the last block ends with the pooling. `readout` takes the place of the flattening.

    (B, channels_in, S, S) -> (B, d) with d = channels (S // 16)^2: 64 at 28 px, 1600 at 84 px; with
    `readout.maximum` channels more.
    """

    def __init__(
        self, channels_in: int, channels: int, *, last_relu: bool = True, readout: ReadoutConfig | None = None
    ) -> None:
        blocks = [
            nn.Sequential(
                nn.Conv2d(channels_in if i == 0 else channels, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.MaxPool2d(2),
                nn.ReLU(),
            )
            for i in range(4)
        ]
        if not last_relu:
            del blocks[-1][-1]
        super().__init__(*blocks, nn.Flatten() if readout is None else Readout(channels, readout))


class Readout(nn.Module):
    """A power of the last feature map that keeps signs, a blur, and each channel's maximum: (B, C, H, W) to (B, d).

    d is C H W, and C more with a maximum.

    The power lets strong activations count more in cosines. A flattened map is compared position by position, so an
    object shifted by one position has a quite different embedding; the blur gives each position some of its neighbours,
    and the maximum over positions stays the same wherever the object is.
    """

    kernel: Tensor

    def __init__(self, channels: int, config: ReadoutConfig) -> None:
        super().__init__()
        self.power, self.maximum = config.power, config.maximum
        line = torch.tensor([config.blur, 1.0, config.blur])
        self.register_buffer("kernel", torch.outer(line, line).expand(channels, 1, 3, 3).clone(), persistent=False)

    def forward(self, maps: Tensor) -> Tensor:
        maps = maps.sign() * maps.abs() ** self.power
        blurred = functional.conv2d(maps, self.kernel.to(maps.dtype), padding=1, groups=len(self.kernel)).flatten(1)
        if not self.maximum:
            return blurred
        maxima = functional.normalize(maps.amax((2, 3)), dim=1)
        length = torch.linalg.vector_norm(blurred, dim=1, keepdim=True)
        return torch.cat([blurred, self.maximum * length * maxima], dim=1)
