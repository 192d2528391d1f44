"""Images kept on the training device, so that a batch needs no transfer."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.data.images import ImageSet


class ResidentImages:
    """The images of an `ImageSet` on a device; on the CPU they are not copied."""

    def __init__(self, data: ImageSet, device: torch.device) -> None:
        self.data = data
        self.pixels = torch.from_numpy(data.images).to(device)

    def gather(self, classes: NDArray[np.intp], indices: NDArray[np.intp]) -> Tensor:
        """First views (n, ...) of the images at `indices` (n,), rotated according to their `classes` (n,)."""
        pixels = self.pixels[:, 0] if self.data.views > 1 else self.pixels
        return self._rotated(pixels[self._on_device(indices)], classes)

    def gather_views(self, classes: NDArray[np.intp], indices: NDArray[np.intp]) -> Tensor:
        """All views (n V, ...), image by image; else as `gather`."""
        picked = self.pixels[self._on_device(indices)]
        if self.data.views > 1:
            picked, classes = picked.flatten(0, 1), classes.repeat(self.data.views)
        return self._rotated(picked, classes)

    def _on_device(self, indices: NDArray[np.intp]) -> Tensor:
        return torch.from_numpy(indices).to(self.pixels.device)

    def _rotated(self, picked: Tensor, classes: NDArray[np.intp]) -> Tensor:
        turns = classes % self.data.rotations
        for turn in range(1, self.data.rotations):
            chosen = self._on_device(np.flatnonzero(turns == turn))
            picked[chosen] = picked[chosen].rot90(turn, (1, 2))
        return picked
