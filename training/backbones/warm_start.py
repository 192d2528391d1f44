"""Weights of a bundle as the start of a training run.

An exported graph has batch norm folded into the convolutions before it, or beside them where two
branches, image and mirror image, share them. What each normalised is measured again on images, so
that the network computes what the bundle does and can go on learning.
"""

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from comln_serve.bundle import BundleError, load_bundle
from training.backbones.backbone import Backbone
from training.backbones.conv4 import Conv4
from training.backbones.errors import BackboneError

# What the network and its input depend on; a bundle that differs in one of them does not fit.
_MATCHING = ("kind", "channels", "colour", "mean", "std")


@torch.no_grad()
def warm_start(backbone: Backbone, bundle: Path, images: Tensor) -> None:
    """Make `backbone`, a conv4, compute what the bundle's graph does.

    Args:
        images: (n, S, S, 3) uint8 training images, some hundreds, for the statistics of batch norm.

    Raises:
        BackboneError: no usable bundle, or one of another network.
    """
    folded = _convolutions(backbone, bundle)
    if not isinstance(backbone.network, Conv4) or backbone.pixels is None:
        raise BackboneError("only a conv4 can start from a bundle")
    was_training = backbone.training
    backbone.eval()
    x: Tensor = backbone.pixels(images)
    for block, (weight, bias) in zip(list(backbone.network)[: len(folded)], folded, strict=True):
        convolution, norm = block[0], block[1]  # type: ignore[index]
        if not isinstance(convolution, nn.Conv2d) or not isinstance(norm, nn.BatchNorm2d):
            raise TypeError("a block of conv4 starts with a convolution and its batch norm")
        if convolution.weight.shape != weight.shape:
            raise BackboneError(
                f"{bundle}: a convolution is {tuple(weight.shape)}; the recipe's is {tuple(convolution.weight.shape)}"
            )
        convolution.weight.copy_(weight)
        y = convolution(x)
        mean, var = y.mean(dim=(0, 2, 3)), y.var(dim=(0, 2, 3), unbiased=False)
        norm.running_mean, norm.running_var = mean, var
        norm.weight.copy_((var + norm.eps).sqrt())
        norm.bias.copy_(mean + bias.to(mean.device))
        x = block(x)
    backbone.train(was_training)


def _convolutions(backbone: Backbone, folder: Path) -> list[tuple[Tensor, Tensor]]:
    """Kernel and bias of every convolution of the bundle, in order."""
    try:
        bundle = load_bundle(folder)
    except BundleError as error:
        raise BackboneError(f"backbone.warm_start: {error}") from error
    trained = bundle.manifest.training.config.get("backbone", {})
    ours = backbone.config.model_dump(mode="json")
    different = [key for key in _MATCHING if trained.get(key) != ours[key]]
    if different:
        raise BackboneError(
            f"backbone.warm_start: {folder} has another network: "
            + "; ".join(f"{key} {trained.get(key)!r}, not {ours[key]!r}" for key in different)
        )
    graph = onnx.load_from_string(bundle.backbone).graph
    tensors = {
        tensor.name: torch.from_numpy(np.array(numpy_helper.to_array(tensor), dtype=np.float32))
        for tensor in graph.initializer
    }
    norms = {node.input[0]: node for node in graph.node if node.op_type == "BatchNormalization"}
    found: dict[str, tuple[Tensor, Tensor]] = {}  # by the weights' name: each branch has them
    for node in graph.node:
        if node.op_type == "Conv":
            norm = norms.get(node.output[0])
            names = [*node.input[1:], *(norm.input[1:] if norm is not None else [])]
            if not set(names) <= tensors.keys():
                raise BackboneError(f"backbone.warm_start: {folder} has convolutions without plain weights")
            if (len(node.input) == 3) == (norm is not None):
                raise BackboneError(
                    f"backbone.warm_start: {folder} has convolutions with neither a bias nor batch "
                    "norm behind them, or both; a conv4 has one of them"
                )
            parts = [tensors[name] for name in names]
            found[names[0]] = (parts[0], parts[1]) if norm is None else _fold(parts, _epsilon(norm))
    return list(found.values())


def _fold(parts: list[Tensor], epsilon: float) -> tuple[Tensor, Tensor]:
    """Kernel and bias of a convolution and the batch norm behind it."""
    weight, scale, bias, mean, var = parts
    factor = scale / (var + epsilon).sqrt()
    return weight * factor[:, None, None, None], bias - mean * factor


def _epsilon(norm: onnx.NodeProto) -> float:
    return next((float(a.f) for a in norm.attribute if a.name == "epsilon"), 1e-5)
