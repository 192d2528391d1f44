"""torchvision's classification networks without their last layer."""

import difflib
import warnings
from typing import Any, cast

import torchvision
from torch import nn
from torchvision.models import WeightsEnum, get_model, get_model_weights, list_models

from training.backbones.pixel_format import default_normalisation
from training.config import BackboneConfig
from training.errors import BackboneError

_CLASSES = 1000  # outputs of every architecture's last layer by default
_AUXILIARY = ("aux1", "aux2", "AuxLogits")


def torchvision_network(
    config: BackboneConfig, *, pretrained: bool
) -> tuple[nn.Module, tuple[str, ...], type[nn.Module]]:
    """The network, the names of the classifiers it lacks, and the class of torchvision's pooling layers.

    Args:
        pretrained: whether to load the published weights that the configuration names.
    """
    name = _architecture(config)
    named = _named_weights(config)
    with warnings.catch_warnings():
        # Two architectures warn that their initial weights will be drawn differently.
        warnings.simplefilter("ignore", FutureWarning)
        network = _build(name, named if pretrained else None)
    if hasattr(network, "transform_input"):
        # Inception networks convert internally to the normalisation of their published weights.
        network.transform_input = named is not None
    if hasattr(network, "aux_logits"):
        # In training, auxiliary classifiers would add outputs to the embedding.
        network.aux_logits = False
        for auxiliary in _AUXILIARY:
            if hasattr(network, auxiliary):
                setattr(network, auxiliary, None)
    return network, (_cut_classifier(network, name), *_AUXILIARY), nn.AdaptiveAvgPool2d


def torchvision_normalisation(config: BackboneConfig) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of the recipe, or else those with which the named weights were trained."""
    named = _named_weights(config)
    if config.mean is None and named is not None:
        transforms: Any = named.transforms()
        return tuple(transforms.mean), tuple(transforms.std)
    return default_normalisation(config)


def _architecture(config: BackboneConfig) -> str:
    known = list_models(module=torchvision.models)
    name = config.architecture
    if name not in known:
        close = difflib.get_close_matches(str(name), known, n=3) or known
        raise BackboneError(
            f"backbone.architecture {name!r} is none of torchvision's {len(known)} classification "
            f"networks; e.g. {', '.join(close)}"
        )
    return str(name)


def _named_weights(config: BackboneConfig) -> WeightsEnum | None:
    if config.weights is None or config.weights_file is not None:
        return None
    published = cast("Any", get_model_weights(_architecture(config)))
    names: list[str] = [entry.name for entry in published]
    if config.weights == "DEFAULT" and names:
        return cast("WeightsEnum", published.DEFAULT)
    if config.weights not in names:
        raise BackboneError(
            f"backbone.weights {config.weights!r}: {config.architecture} has "
            f"{', '.join(['DEFAULT', *names]) if names else 'no published weights'}; or give the "
            "path of a state dict, such as ./weights.pt"
        )
    return cast("WeightsEnum", published[config.weights])


def _build(name: str, weights: WeightsEnum | None) -> Any:
    try:
        return get_model(name, weights=weights)
    except (OSError, RuntimeError) as error:
        if weights is None:
            raise
        raise BackboneError(
            f"the weights {weights} could not be downloaded or read ({error}). Without access to "
            f"{weights.url}, fetch that file elsewhere, set backbone.weights to its path, and "
            "backbone.mean and backbone.std to "
            f"{weights.transforms().mean} and {weights.transforms().std}"
        ) from error


def _cut_classifier(network: nn.Module, name: str) -> str:
    """Replace the last linear layer by the identity; returns its name."""
    linear = [(key, part) for key, part in network.named_modules() if isinstance(part, nn.Linear)]
    if not linear or linear[-1][1].out_features != _CLASSES:
        raise BackboneError(
            f"{name} does not end in a linear layer over its {_CLASSES} classes, so there is no "
            'layer to remove; export its embedding as an ONNX file and use kind "onnx"'
        )
    key = linear[-1][0]
    network.set_submodule(key, nn.Identity())
    return key
