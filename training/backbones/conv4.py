"""The paper's Conv-4."""

from torch import nn


class Conv4(nn.Sequential):
    """4 x [3x3 convolution, batch norm, ReLU, 2x2 max-pool], flattened.

    Pooling comes before ReLU: values and gradients are the same, and ReLU has a quarter of the work.

    Without `last_relu` the last block ends with the pooling.

    (B, channels_in, S, S) -> (B, d) with d = channels (S // 16)^2: 64 at 28 px, 1600 at 84 px.
    """

    def __init__(self, channels_in: int, channels: int, *, last_relu: bool = True) -> None:
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
        super().__init__(*blocks, nn.Flatten())
