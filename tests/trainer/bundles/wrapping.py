"""`comln-train wrap` as tests give it, and what a wrapped model computes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from comln_serve.bundle import load_bundle
from comln_serve.engine.embedding.backbone import OnnxBackbone
from training.cli import main

MEAN_AND_STD = ("--mean", "0.4,0.5,0.6", "--std", "0.2,0.3,0.4")  # those of `by_torch`


def wrap(model: Path, *flags: str) -> Path:
    """The bundle of a model that must be accepted by `wrap`."""
    bundle = model.parent / "models" / "mine"
    assert main(["wrap", str(model), "--to", str(bundle), "--replace", *flags]) == 0
    return bundle


def refusal(capsys: pytest.CaptureFixture[str], model: Path, *flags: str) -> str:
    """The error message for a model that must be refused; no bundle is written."""
    bundle = model.parent / "models" / "mine"
    assert main(["wrap", str(model), "--to", str(bundle), *flags]) == 2
    assert not bundle.exists()
    return capsys.readouterr().err


def embed(bundle: Path, x: torch.Tensor) -> torch.Tensor:
    """The embeddings that the server computes."""
    return torch.from_numpy(OnnxBackbone(load_bundle(bundle), "cpu").embed(x.numpy()))


def unit(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(x, dim=1)


def backbone_of(bundle: Path) -> dict[str, Any]:
    tree: dict[str, Any] = load_bundle(bundle).manifest.training.config["backbone"]
    return tree


def planes(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 3, 1, 2).float()
