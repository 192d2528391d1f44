"""A bundle's weights as the start of a training run.

In an exported graph batch norm is folded into the convolution before it, or is a node of its own if
two branches, image and mirror image, share the convolution. Batch norm's statistics are measured
again on images, so that the network computes the same as the bundle and can be trained further.
"""

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from comln_serve.bundle import BundleError, load_bundle
from training.backbones.backbone import Backbone
from training.backbones.conv4 import Conv4
from training.backbones.onnx_nodes import attributes_of
from training.backbones.resnet12 import ResNet12
from training.errors import BackboneError

# Keys on which the network and its input depend: a bundle must have the same values.
_MATCHING = ("kind", "channels", "colour", "mean", "std")


@torch.no_grad()
def warm_start(backbone: Backbone, bundle: Path, images: Tensor) -> None:
    """Give `backbone`, a conv4 or a resnet12, the weights of a bundle, so that it computes the same embeddings.

    Args:
        images: (n, S, S, 3) uint8, some hundreds of training images for the statistics of batch norm.

    Raises:
        BackboneError: not a usable bundle, or a bundle of another network.
    """
    folded = _convolutions(backbone, bundle)
    if not isinstance(backbone.network, Conv4 | ResNet12) or backbone.pixels is None:
        raise BackboneError("only a conv4 or a resnet12 can start from a bundle")
    convolutions = [module for module in backbone.network.modules() if isinstance(module, nn.Conv2d)]
    norms = [module for module in backbone.network.modules() if isinstance(module, nn.BatchNorm2d)]
    # A graph may list a block's shortcut before or after its other convolutions; those of one shape are in order.
    ours = sorted(zip(convolutions, norms, strict=True), key=lambda pair: pair[0].weight.shape)
    theirs = sorted(folded, key=lambda pair: pair[0].shape)
    shapes = [[tuple(w.shape) for w in ws] for ws in ([w for w, _ in theirs], [c.weight for c, _ in ours])]
    if shapes[0] != shapes[1]:
        raise BackboneError(f"{bundle}: its convolutions are {shapes[0]}; the recipe's are {shapes[1]}")
    hooks = []
    for (convolution, norm), (weight, bias) in zip(ours, theirs, strict=True):
        convolution.weight.copy_(weight)
        hooks.append(norm.register_forward_pre_hook(partial(_stand_in_for_bias, bias.to(images.device))))
    was_training = backbone.training
    backbone.eval()
    backbone.network(backbone.pixels(images))  # every batch norm sees what those before it now compute
    for hook in hooks:
        hook.remove()
    backbone.train(was_training)


def _stand_in_for_bias(bias: Tensor, norm: nn.Module, inputs: tuple[Tensor]) -> None:
    """Let a batch norm add `bias` and nothing else, with the statistics of what it is given, (n, channels, S, S)."""
    if not isinstance(norm, nn.BatchNorm2d):
        raise TypeError("only batch norm has these statistics")
    mean, var = inputs[0].mean(dim=(0, 2, 3)), inputs[0].var(dim=(0, 2, 3), unbiased=False)
    norm.running_mean, norm.running_var = mean, var
    norm.weight.copy_((var + norm.eps).sqrt())
    norm.bias.copy_(mean + bias)


def _convolutions(backbone: Backbone, folder: Path) -> list[tuple[Tensor, Tensor]]:
    """Kernel and bias of the bundle's convolutions, in order."""
    graph = _graph(backbone, folder)
    tensors = {
        tensor.name: torch.from_numpy(np.array(numpy_helper.to_array(tensor), dtype=np.float32))
        for tensor in graph.initializer
    }
    norms = {node.input[0]: node for node in graph.node if node.op_type == "BatchNormalization"}
    found: dict[str, tuple[Tensor, Tensor]] = {}  # by the weights' name: both branches use the same
    for node in graph.node:
        if node.op_type == "Conv" and attributes_of(node).get("group", 1) == 1:  # a readout's blur is no block
            norm = norms.get(node.output[0])
            names = [*node.input[1:], *(norm.input[1:] if norm is not None else [])]
            if not set(names) <= tensors.keys():
                raise BackboneError(f"backbone.warm_start: {folder} has convolutions without plain weights")
            if (len(node.input) == 3) == (norm is not None):
                raise BackboneError(
                    f"backbone.warm_start: {folder} has convolutions with neither a bias nor batch "
                    "norm behind them, or both; each has one of them"
                )
            parts = [tensors[name] for name in names]
            found[names[0]] = (
                (parts[0], parts[1]) if norm is None else _fold(parts, attributes_of(norm).get("epsilon", 1e-5))
            )
    return list(found.values())


def _graph(backbone: Backbone, folder: Path) -> onnx.GraphProto:
    """The graph of a bundle of the same network."""
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
    return onnx.load_from_string(bundle.backbone).graph


def _fold(parts: list[Tensor], epsilon: float) -> tuple[Tensor, Tensor]:
    """Kernel and bias of one convolution that equals a convolution and its batch norm."""
    weight, scale, bias, mean, var = parts
    factor = scale / (var + epsilon).sqrt()
    return weight * factor[:, None, None, None], bias - mean * factor
