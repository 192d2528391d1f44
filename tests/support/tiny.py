"""Tiny models made by the real exporter.

`python -m tests.support.tiny` makes those in tests/bundles anew.
"""

from pathlib import Path
from typing import Any

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


def tiny_config(start: str = "zero", ways: int = 5, image_size: int = 16, **changes: Any) -> Config:
    """A Conv-4 of 8 channels on 16 px colour images: embeddings of size 8.

    Args:
        changes: of sections, as of `changed`.
    """
    config = Config.model_validate(
        {
            "data": {"kind": "image_folder", "preprocessing": {"image_size": image_size}},
            "backbone": {"channels": 8},
            "head": {"start": start, "initial_horizon": 20.0, "initial_alpha": 2.0},
            "episodes": {"ways": ways, "shots": [1, 2], "queries": 2},
            "validation": {"tasks": [[ways, 1]], "episodes": 5, "every": 2, "queries": 2},
            "updates": 4,
        }
    )
    return changed(config, **changes)


def changed(config: Config, **changes: Any) -> Config:
    """The configuration with other values of some keys of its sections; a section with a kind replaces the whole."""
    tree = config.model_dump(mode="json")
    for name, value in changes.items():
        merge = isinstance(tree[name], dict) and isinstance(value, dict) and "kind" not in value
        tree[name] = {**tree[name], **value} if merge else value
    return Config.model_validate(tree)


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


def checkpoint_of(model: MetaModel, command: str = "a", hardware: str = "b") -> Checkpoint:
    """A model as a run saves it, before its first update."""
    return Checkpoint(model.config, 0, model.state_dict(), {}, {}, 0.0, 0.0, [], command, hardware)


def write_bundle(folder: Path, config: Config) -> MetaModel:
    """Export a tiny model to `folder` with the real exporter, and return the torch model."""
    model = tiny_model(config)
    export_bundle(checkpoint_of(model), folder, ABOUT)
    return model


if __name__ == "__main__":
    for name, start in BUNDLES.items():
        write_bundle(REPOSITORY / "tests" / "bundles" / name, tiny_config(start))
