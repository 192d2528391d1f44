"""Tiny models made by the real exporter.

`python -m tests.support.tiny` makes those in tests/bundles anew.
"""

from pathlib import Path

import numpy as np
import torch

from tests.support.paths import REPOSITORY
from training.bundles.export import export_bundle
from training.bundles.writer import About
from training.checkpoint import Checkpoint
from training.config import Config
from training.model import MetaModel

ABOUT = About(description="A tiny test model.", licence="Apache-2.0", data="none")
BUNDLES = {"tiny": "zero", "tiny-prototype": "prototype", "tiny-learned": "learned"}


def tiny_config(start: str = "zero", ways: int = 5, image_size: int = 16) -> Config:
    """A Conv-4 of 8 channels on 16 px colour images: embeddings of size 8."""
    return Config.model_validate(
        {
            "data": {"kind": "image_folder", "preprocessing": {"image_size": image_size}},
            "backbone": {"channels": 8},
            "head": {"start": start, "initial_horizon": 20.0, "initial_alpha": 2.0},
            "episodes": {"ways": ways, "shots": [1, 2], "queries": 2},
            "validation": {"tasks": [[ways, 1]], "episodes": 5, "every": 2, "queries": 2},
            "updates": 4,
        }
    )


def tiny_model(config: Config) -> MetaModel:
    """Random weights, running statistics of a few random images; no training."""
    torch.manual_seed(0)
    model = MetaModel(config)
    size = config.data.preprocessing.image_size
    images = np.random.default_rng(0).integers(0, 256, (32, size, size, 3), dtype=np.uint8)
    model.train()
    with torch.no_grad():
        for _ in range(20):
            model.backbone(torch.from_numpy(images))
        if model.W0 is not None:
            model.W0.normal_(std=0.1)
    return model.eval()


def write_bundle(folder: Path, config: Config) -> MetaModel:
    """Export a tiny model to `folder` with the real exporter, and return the torch model."""
    model = tiny_model(config)
    checkpoint = Checkpoint(config, 0, model.state_dict(), {}, {}, 0.0, 0.0, [], "a", "b")
    export_bundle(checkpoint, folder, ABOUT)
    return model


if __name__ == "__main__":
    for name, start in BUNDLES.items():
        write_bundle(REPOSITORY / "tests" / "bundles" / name, tiny_config(start))
