"""timm's networks without their classifier."""

import difflib
from typing import Any, cast

import timm
from timm.layers.adaptive_avgmax_pool import SelectAdaptivePool2d
from torch import nn

from training.config import BackboneConfig
from training.errors import BackboneError


def timm_network(config: BackboneConfig) -> tuple[nn.Module, tuple[str, ...], type[nn.Module]]:
    """The network with random weights, the names of the classifiers it lacks, the class of timm's pooling layers."""
    name = str(config.architecture)
    # Names of a model hub are refused here, so nothing is downloaded.
    if not timm.is_model(name):
        known = timm.list_models()
        close = difflib.get_close_matches(name, known, n=3) or known[:3]
        raise BackboneError(
            f"backbone.architecture {name!r} is none of timm's {len(known)} networks; e.g. {', '.join(close)}"
        )
    network: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    found: Any = cast("Any", network).pretrained_cfg.get("classifier") or ()  # some networks have two
    return network, (found,) if isinstance(found, str) else tuple(found), SelectAdaptivePool2d
