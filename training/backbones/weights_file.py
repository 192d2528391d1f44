"""State dicts from files, for networks from libraries."""

from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from training.errors import BackboneError


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state dict in a .pt, .pth or .safetensors file, name -> tensor on the CPU.

    Dictionaries in which training scripts wrap it, and the prefix "module." of data-parallel
    training, are removed.

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
    except Exception as error:  # torch raises many types for a damaged file
        raise BackboneError(f"backbone.weights: {path} is not a state dict of plain tensors ({error})") from error
    for wrapper in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise BackboneError(f"backbone.weights: {path} is not a state dict (name -> tensor)")
    return {str(key).removeprefix("module."): value for key, value in content.items()}


def load_weights(network: nn.Module, state: dict[str, Tensor], dropped: tuple[str, ...], path: Path, name: str) -> None:
    """Load a state dict into a network, except for the weights whose names start with one of `dropped`.

    Args:
        path, name: of the file and the network, for error messages.

    Raises:
        BackboneError: the weights do not fit.
    """
    try:
        network.load_state_dict({key: value for key, value in state.items() if not key.startswith(dropped)})
    except RuntimeError as error:
        raise BackboneError(f"{path} holds no weights of {name}: {error}") from error
