"""Networks of torchvision and timm without their classifier, with weights from files, other pooling, inner layers."""

from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor, nn

from training.backbones.efficientnet_names import timm_names
from training.backbones.layers import Layers
from training.backbones.pooling import CentrePooling
from training.backbones.torchvision_model import torchvision_network
from training.config import BackboneConfig
from training.config.backbone import PoolingConfig
from training.errors import BackboneError


def library_network(config: BackboneConfig, image_size: int, *, pretrained: bool) -> tuple[nn.Module, int]:
    """The network, normalised (B, 3, S, S) -> (B, d), and d.

    Args:
        pretrained: false does not load weights, because those of a checkpoint will replace them.

    Raises:
        BackboneError: unknown architecture, weights or layers, weights that cannot be read or do not fit, no last
            layer or pooling to replace, or an image size that the network does not take.
    """
    if config.kind == "torchvision":
        network, classifiers, pooling = torchvision_network(config, pretrained=pretrained)
    else:
        # Imported only if needed: it takes a second.
        from training.backbones.timm_model import timm_network  # noqa: PLC0415

        network, classifiers, pooling = timm_network(config)
    name = str(config.architecture)
    if config.weights_file is not None and pretrained:
        path = Path(config.weights_file)
        state = _read_weights(path)
        if config.kind == "timm":
            state = timm_names(state, network.state_dict())
        # The network has no classifiers, so their weights are not loaded.
        dropped = tuple(f"{classifier}." for classifier in classifiers)
        try:
            network.load_state_dict({key: value for key, value in state.items() if not key.startswith(dropped)})
        except RuntimeError as error:
            raise BackboneError(f"{path} holds no weights of {name}: {error}") from error
    if config.pooling is not None:
        _pool_by(network, config.pooling, pooling, name)
    size = _embedding_size(network, name, image_size)
    if not config.layers:
        return network, size
    layers = Layers(network, config.layers, config.pooling)
    return layers, _embedding_size(layers, "the network", image_size)


def _read_weights(path: Path) -> dict[str, Tensor]:
    """The state dict in a .pt, .pth or .safetensors file, name -> tensor on the CPU.

    Dictionaries in which training scripts wrap it, and the prefix "module." of data-parallel training, are removed.
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


def _embedding_size(network: nn.Module, name: str, image_size: int) -> int:
    """Size d of the network's embedding of an image (1, 3, S, S), found by running it; `name` is for error messages."""
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            embedding = network(torch.zeros(1, 3, image_size, image_size))
    except BackboneError:  # its message already says what is wrong
        raise
    except (AssertionError, IndexError, RuntimeError, ValueError) as error:
        raise BackboneError(
            f"{name} does not take images of {image_size} px ({error}); set "
            "data.preprocessing.image_size to a size it takes, usually 224"
        ) from error
    finally:
        network.train(was_training)
    if embedding.ndim != 2:
        raise BackboneError(f"{name} gives {tuple(embedding.shape)}, not one vector per image")
    return int(embedding.shape[1])


def _pool_by(network: nn.Module, config: PoolingConfig, kind: type[nn.Module], name: str) -> None:
    """Replace the last pooling of a library's network, in place.

    Args:
        kind: the library's class of pooling layers.
        name: of the network, for error messages.
    """
    found = [key for key, part in network.named_modules() if isinstance(part, kind)]
    last = network.get_submodule(found[-1]) if found else None
    probe = None if last is None else cast("Tensor", last(torch.ones(1, 1, 8, 8)))
    if probe is None or probe.numel() != 1:
        raise BackboneError(
            f"backbone.pooling replaces the layer that takes the mean of the last feature map; {name} has none, or one "
            "with channels last. Leave pooling out, or use another network"
        )
    network.set_submodule(found[-1], CentrePooling(config.sigma, config.power, keep_dimensions=probe.ndim == 4))
