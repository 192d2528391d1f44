"""Embeddings from several depths: a network's own, and those pooled from its inner feature maps."""

import difflib
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.backbones.pooling import CentrePooling
from training.config.backbone import PoolingConfig
from training.errors import BackboneError


class Layers(nn.Module):
    """The network's embedding and the (weighted) means over positions of inner feature maps, concatenated.

    Each part is divided by its norm, so that all have the same weight.
    """

    def __init__(self, network: nn.Module, names: Sequence[str], pooling: PoolingConfig | None = None) -> None:
        """Use the feature maps of the layers with these names; BackboneError without one of them."""
        super().__init__()
        self.network, self.names = network, tuple(names)
        self.pool = None if pooling is None else CentrePooling(pooling.sigma)
        known = [name for name, _ in network.named_modules() if name]
        for name in self.names:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=3) or known[-3:]
                raise BackboneError(f"backbone.layers: the network has no layer {name!r}; e.g. {', '.join(close)}")

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images (B, 3, S, S) -> (B, d)."""
        maps: dict[str, object] = {}
        with ExitStack() as hooks:
            for name in self.names:
                layer = self.network.get_submodule(name)
                hooks.enter_context(layer.register_forward_hook(_keep(maps, name)))
            parts: list[Tensor] = [self.network(x)]
        for name in self.names:
            found = maps.get(name)
            if not isinstance(found, Tensor) or found.ndim != 4:
                shape = tuple(found.shape) if isinstance(found, Tensor) else "none"
                raise BackboneError(
                    "backbone.layers takes layers that give feature maps (batch, channels, "
                    f"height, width); {name} gives {shape}"
                )
            parts.append(found.mean(dim=(2, 3)) if self.pool is None else self.pool(found))
        return torch.cat([functional.normalize(part.float(), dim=1) for part in parts], dim=1)


def _keep(maps: dict[str, object], name: str) -> Callable[[nn.Module, object, object], None]:
    """A forward hook that stores the layer's output in `maps`."""

    def keep(_layer: nn.Module, _inputs: object, output: object) -> None:
        maps[name] = output

    return keep
