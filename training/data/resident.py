"""Images kept on the training device, so that a batch needs no transfer."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.data.images import ImageSet


class ResidentImages:
    """The pixels of an `ImageSet` on a device; on the CPU they are not copied."""

    def __init__(self, data: ImageSet, device: torch.device) -> None:
        self.data = data
        self.pixels = torch.from_numpy(data.images).to(device)

    def gather(self, classes: NDArray[np.intp], indices: NDArray[np.intp]) -> Tensor:
        """Images (n, ...) at `indices` (n,), rotated according to their `classes` (n,)."""
        device = self.pixels.device
        picked = self.pixels[torch.from_numpy(indices).to(device)]
        turns = classes % self.data.rotations
        for turn in range(1, self.data.rotations):
            chosen = torch.from_numpy(np.flatnonzero(turns == turn)).to(device)
            picked[chosen] = picked[chosen].rot90(turn, (1, 2))
        return picked
