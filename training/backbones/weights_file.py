"""Weights of a network from elsewhere, read from a file."""

from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from training.backbones.errors import BackboneError


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state dict in a .pt, .pth or .safetensors file, name -> tensor on the CPU.

    The wrappers that training scripts put around it, and the prefix "module." that data-parallel
    training puts before its names, are removed.

    Raises:
        BackboneError: no such file, or not a state dict of plain tensors.
    """
    try:
        content: Any = (
            safetensors.torch.load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except FileNotFoundError as error:
        raise BackboneError(f"backbone.weights: {path}: no such file") from error
    except Exception as error:  # torch raises many kinds for a damaged file
        raise BackboneError(f"backbone.weights: {path} is not a state dict of plain tensors ({error})") from error
    for wrapper in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise BackboneError(f"backbone.weights: {path} is not a state dict (name -> tensor)")
    return {str(key).removeprefix("module."): value for key, value in content.items()}
