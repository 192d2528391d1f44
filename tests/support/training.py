"""Training runs and their networks, as tests make and compare them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from comln_serve.bundle import load_bundle
from comln_serve.engine.embedding.backbone import OnnxBackbone
from tests.support.tiny import tiny_config
from training.checkpoint import Checkpoint
from training.checkpoint_names import LAST
from training.config import Config
from training.data import ImageSet


def config(start: str = "zero", **changes: Any) -> Config:
    """A run of four updates that learns `colour_classes` quickly."""
    return tiny_config(start, **{"optimiser": {"lr": 0.02, "head_lr": 0.05}, **changes})


def image_set(images: NDArray[Any], sizes: Sequence[int], **more: Any) -> ImageSet:
    """Images in classes "0", "1", ... of these sizes, one after the other."""
    ends = np.cumsum(sizes)
    members = tuple(np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True))
    return ImageSet(images, members, tuple(map(str, range(len(sizes)))), **more)


def colour_classes(n_classes: int = 8, per_class: int = 8, size: int = 16) -> ImageSet:
    """Classes that differ in colour, and are learned in a few updates."""
    rng = np.random.default_rng(0)
    centres = rng.integers(30, 225, (n_classes, 1, 1, 1, 3))
    noise = rng.integers(-25, 26, (n_classes, per_class, size, size, 3))
    images = (centres + noise).clip(0, 255).astype(np.uint8).reshape(-1, size, size, 3)
    return image_set(images, [per_class] * n_classes)


def save_images(data: ImageSet, folder: Path) -> Path:
    """Write the images as class folders of a training and of a validation split."""
    for split in ("train", "val"):
        for name, members in zip(data.names, data.members, strict=True):
            (folder / split / name).mkdir(parents=True)
            for i in members:
                Image.fromarray(data.images[i]).save(folder / split / name / f"{i}.png")
    return folder


def colour_folders(root: Path) -> Path:
    """Write eight classes of colours for each split, eleven images each."""
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for c in range(8):
            folder = root / split / f"class{c}"
            folder.mkdir(parents=True)
            colour = rng.integers(60, 200, 3)
            for i in range(11):
                pixels = (colour + rng.integers(-50, 51, (16, 16, 3))).clip(0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    return root


def perturbed(network: nn.Module) -> nn.Module:
    """The network with weights and statistics that differ from the initial ones."""
    with torch.no_grad():
        for tensor in network.state_dict().values():
            if tensor.is_floating_point():
                tensor.mul_(1 + 0.1 * torch.rand_like(tensor)).add_(0.01)
    return network.eval()


def check_equal_runs(one: Path, other: Path, updates: int) -> None:
    """Both runs have done so many updates, and have the same weights to the last bit."""
    first, second = (Checkpoint.load(run / LAST) for run in (one, other))
    assert first.update == second.update == updates
    for key, tensor in first.model.items():
        assert torch.equal(tensor, second.model[key]), key


def check_served(
    bundle: Path, images: NDArray[np.uint8], expected: NDArray[np.float32], *, rtol: float = 1e-3, atol: float = 1e-4
) -> None:
    """A server computes these embeddings of the images, of one alone, of several in a batch and of all."""
    backbone = OnnxBackbone(load_bundle(bundle), "cpu")
    for count in (1, 7, len(images)):
        np.testing.assert_allclose(backbone.embed(images[:count]), expected[:count], rtol=rtol, atol=atol)
