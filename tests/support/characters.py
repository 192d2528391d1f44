"""Made-up drawings in classes, for tests that train on images."""

import numpy as np
import torch

from training.data import ImageSet
from training.data.resident import ResidentImages


def characters(classes: int = 6, each: int = 20) -> ResidentImages:
    """Classes of one shape each with some noise, 28 px."""
    rng = np.random.default_rng(0)
    shapes = rng.integers(0, 2, (classes, 1, 28, 28, 1)) * 200
    images = np.clip(shapes + rng.normal(0, 20, (classes, each, 28, 28, 1)), 0, 255).astype(np.uint8)
    members = tuple(np.arange(each) + each * c for c in range(classes))
    data = ImageSet(np.repeat(images.reshape(-1, 28, 28, 1), 3, axis=3), members, tuple(map(str, range(classes))))
    return ResidentImages(data, torch.device("cpu"))
