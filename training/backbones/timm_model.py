"""timm's networks without their classifier, with weights from local files only."""

import difflib
from pathlib import Path
from typing import Any, cast

import timm
from timm.layers.adaptive_avgmax_pool import SelectAdaptivePool2d
from torch import nn

from training.backbones.efficientnet_names import is_port, timm_names
from training.backbones.pooling import pool_by
from training.backbones.probe import embedding_size
from training.backbones.weights_file import load_weights, read_weights
from training.config import BackboneConfig
from training.errors import BackboneError


def timm_network(config: BackboneConfig, image_size: int, *, pretrained: bool) -> tuple[nn.Module, int]:
    """The network, normalised (B, 3, S, S) -> (B, d), and d.

    Args:
        pretrained: false does not load weights, because those of a checkpoint will replace them.

    Raises:
        BackboneError: unknown architecture, weights that cannot be read or do not fit, or an image
            size that the network does not take.
    """
    name = _architecture(config)
    network: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    if config.weights_file is not None and pretrained:
        _load(network, Path(config.weights_file), name)
    pool_by(network, config.pooling, SelectAdaptivePool2d, name)
    return network, embedding_size(network, name, image_size)


def _architecture(config: BackboneConfig) -> str:
    name = str(config.architecture)
    # Names of a model hub are refused here, so nothing is downloaded.
    if not timm.is_model(name):
        known = timm.list_models()
        close = difflib.get_close_matches(name, known, n=3) or known[:3]
        raise BackboneError(
            f"backbone.architecture {name!r} is none of timm's {len(known)} networks; e.g. {', '.join(close)}"
        )
    return name


def _load(network: nn.Module, path: Path, name: str) -> None:
    state = read_weights(path)
    if is_port(state):
        state = timm_names(state, network.state_dict())
    # The network has no classifier, so its weights are not loaded; some networks have two.
    found: Any = cast("Any", network).pretrained_cfg.get("classifier") or ()
    classifiers = (found,) if isinstance(found, str) else tuple(found)
    dropped = tuple(f"{classifier}." for classifier in classifiers)
    load_weights(network, state, dropped, path, name)
