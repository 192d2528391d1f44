"""The embedding network f_Phi of a recipe, from uint8 images to embeddings."""

import math
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.backbones.conv4 import Conv4
from training.backbones.library import library_network
from training.backbones.onnx_model import OnnxNetwork
from training.backbones.pixel_format import PixelFormat, default_normalisation
from training.backbones.pixels import Pixels
from training.backbones.resnet12 import ResNet12
from training.backbones.torchvision_model import torchvision_normalisation
from training.config import BackboneConfig
from training.errors import BackboneError

_LEAST_PIXELS = 16


class Backbone(nn.Module):
    """The network that a bundle contains: uint8 RGB images (B, S, S, 3) -> embeddings (B, d) float32.

    Scaling, colour conversion and normalisation are part of it, so the exported graph takes the same
    pixels as the trainer. Kind "identity" takes embeddings (B, d) float32 instead.

    Attributes:
        network: without preprocessing. pixels: converts images to its input; None if it takes images itself.
        embedding_size: d.
        frozen: no parameter is learned, and batch norm and dropout stay in evaluation mode.
        mirror_apart: whether images and their mirror images are two batches, or one of both. The smaller activations of
            two stay in a CPU's cache.
    """

    mirror_apart = True

    def __init__(self, config: BackboneConfig, image_size: int, *, pretrained: bool = True) -> None:
        """Build the network, with random weights or those that the recipe names.

        Args:
            pretrained: false does not load the named weights, because those of a checkpoint will replace them.

        Raises:
            BackboneError: the network or its weights do not exist, cannot be read or do not fit.
        """
        super().__init__()
        self.config, self.image_size = config, image_size
        self.network, self.pixels, found = _build(config, image_size, pretrained=pretrained)
        if config.embedding_size is not None and found != config.embedding_size:
            raise BackboneError(
                f"embeddings have {found} numbers; backbone.embedding_size says {config.embedding_size}"
            )
        self.embedding_size = found
        self.scale = 1.0 / math.sqrt(found) if config.scale == "sqrt_d" else 1.0
        self.frozen = config.is_frozen
        if self.frozen:
            self.requires_grad_(requires_grad=False)
            self.eval()

    def train(self, mode: bool = True) -> Self:
        return super().train(mode and not self.frozen)

    def features(self, images: Tensor) -> Tensor:
        """The network's output (B, d) float32, neither normalised nor scaled."""
        if not self.config.mirror or self.training:
            return self._features(images)
        mirrored = images.flip(2)
        if self.mirror_apart:
            return (self._features(images) + self._features(mirrored)) / 2
        return self._features(torch.cat([images, mirrored])).unflatten(0, (2, -1)).mean(0)

    def _features(self, images: Tensor) -> Tensor:
        x = images if self.pixels is None else self.pixels(images)
        features: Tensor = self.network(x)
        return features.float()  # autocast may have left 16 bits

    def forward(self, images: Tensor) -> Tensor:
        embeddings = self.features(images)
        if self.config.normalise == "l2":
            embeddings = functional.normalize(embeddings, dim=1)
        return embeddings * self.scale


class Identity(nn.Module):
    """Returns embeddings (B, d) float32 unchanged; refuses anything else."""

    def __init__(self, embedding_size: int) -> None:
        super().__init__()
        self.embedding_size = embedding_size

    def forward(self, embeddings: Tensor) -> Tensor:
        wanted = (self.embedding_size,)
        if embeddings.dtype != torch.float32 or tuple(embeddings.shape[1:]) != wanted:
            advice = ""
            if embeddings.ndim == 4:
                advice = "; for images, choose another backbone.kind"
            elif embeddings.ndim == 2:
                advice = f"; set backbone.embedding_size to {embeddings.shape[1]}"
            raise BackboneError(
                f'backbone.kind "identity" takes float32 embeddings (n, {self.embedding_size}); '
                f"got {embeddings.dtype} {tuple(embeddings.shape)}{advice}"
            )
        return embeddings


class Precomputed(nn.Module):
    """Replaces a frozen backbone when its embeddings were computed in advance.

    It returns its input, and has the backbone's state, so that checkpoints are the same.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.embedding_size, self.frozen = backbone.embedding_size, True
        self.network, self.pixels = backbone.network, backbone.pixels

    def train(self, mode: bool = True) -> Self:
        self.training = mode  # the network itself stays in evaluation mode
        return self

    def forward(self, embeddings: Tensor) -> Tensor:
        return embeddings


def _build(config: BackboneConfig, image_size: int, *, pretrained: bool) -> tuple[nn.Module, Pixels | None, int]:
    """The network, the conversion of images to its input, and the size of its embeddings."""
    if config.kind == "identity":
        size = config.embedding_size or 0  # the configuration requires it
        return Identity(size), None, size
    mean, std = torchvision_normalisation(config) if config.kind == "torchvision" else default_normalisation(config)
    pixels = Pixels(PixelFormat(config.colour, image_size, mean, std))
    if config.kind == "onnx":
        graph = OnnxNetwork(config, image_size)
        return graph, None if config.layout == "as_is" else pixels, graph.file.embedding_size
    if config.kind in {"torchvision", "timm"}:
        network, size = library_network(config, image_size, pretrained=pretrained)
    else:
        network, size = _paper_network(config, image_size)
    return network, pixels, size


def _paper_network(config: BackboneConfig, image_size: int) -> tuple[nn.Module, int]:
    """A network of the paper, Conv-4 or ResNet-12, and d."""
    if image_size < _LEAST_PIXELS:
        raise BackboneError(f"{config.kind} halves the image four times: {_LEAST_PIXELS} px at least, got {image_size}")
    positions = (image_size // 16) ** 2
    if config.kind == "conv4":
        conv4 = Conv4(config.channels_in, config.channels, last_relu=config.last_relu, readout=config.readout)
        maxima = config.readout is not None and config.readout.maximum > 0
        return conv4, config.channels * (positions + maxima)
    resnet12 = ResNet12(
        config.channels_in,
        config.channels,
        image_size,
        global_pooling=config.global_pooling,
        drop_block=config.drop_block,
    )
    return resnet12, 10 * config.channels * (1 if config.global_pooling else positions)
