"""Pooling with the most weight in the centre: its numbers, and the layers of library networks that it replaces."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from training.backbones import Backbone, BackboneError
from training.backbones.pooling import CentrePooling
from training.config import BackboneConfig

TIMM = {"kind": "timm", "architecture": "tf_efficientnet_lite0"}
RESNET = {"kind": "torchvision", "architecture": "resnet18"}


def make(size: int = 64, **keys: object) -> Backbone:
    torch.manual_seed(0)
    return Backbone(BackboneConfig.model_validate(keys), size).eval()


def expected(maps: Tensor, sigma: float, power: float) -> np.ndarray:
    """The definition, position by position."""
    x = maps.double().numpy()
    rows, columns = x.shape[2:]
    total, sums = 0.0, np.zeros(x.shape[:2])
    for i in range(rows):
        for j in range(columns):
            away = ((i + 0.5) / rows - 0.5) ** 2 + ((j + 0.5) / columns - 0.5) ** 2
            weight = np.exp(-away / (2 * sigma**2))
            total += weight
            sums += weight * x[:, :, i, j] ** power
    return (sums / total) ** (1 / power)


@pytest.mark.parametrize("shape", [(7, 7), (4, 6), (1, 1)])
@pytest.mark.parametrize(("sigma", "power"), [(0.285, 1.0), (0.285, 2.0), (0.1, 3.0), (5.0, 1.5)])
def test_weighted_power_means(shape: tuple[int, int], sigma: float, power: float) -> None:
    maps = torch.rand(3, 5, *shape, generator=torch.Generator().manual_seed(0))
    found = CentrePooling(sigma, power)(maps)
    np.testing.assert_allclose(found.numpy(), expected(maps, sigma, power), rtol=1e-5)


def test_maps_with_negative_numbers() -> None:
    """The mean takes them as they are; a power mean counts them as 0."""
    maps = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    plain, squares = CentrePooling(0.3), CentrePooling(0.3, 2.0)
    torch.testing.assert_close(plain(-maps), -plain(maps))
    torch.testing.assert_close(squares(maps), squares(maps.clamp(min=0)))


def test_a_channel_of_zeros_has_a_finite_gradient() -> None:
    maps = torch.zeros(1, 1, 3, 3, requires_grad=True)
    CentrePooling(0.3, 2.0)(maps).sum().backward()
    assert maps.grad is not None
    assert torch.isfinite(maps.grad).all()


def test_sixteen_bits_do_not_overflow() -> None:
    maps = torch.full((1, 2, 3, 3), 1000.0, dtype=torch.float16)
    torch.testing.assert_close(CentrePooling(0.3, 2.0)(maps), torch.full((1, 2), 1000.0))


@pytest.mark.parametrize(("keys", "last"), [(TIMM, "bn2"), (RESNET, "layer4")])
@pytest.mark.parametrize("power", [1.0, 2.0])
def test_the_last_feature_map_of_a_library_network(keys: dict[str, object], last: str, power: float) -> None:
    backbone = make(**keys, pooling={"sigma": 0.285, "power": power})
    network: Any = backbone.network
    maps: list[Tensor] = []
    network.get_submodule(last).register_forward_hook(lambda _, __, found: maps.append(found))
    images = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = backbone(images)
    np.testing.assert_allclose(found.numpy(), expected(maps[0], 0.285, power), rtol=1e-4, atol=1e-5)


def test_a_wide_gaussian_is_the_mean() -> None:
    images = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wide, plain = (make(**TIMM, layers=["blocks.6"], **more)(images) for more in ({"pooling": {"sigma": 1e4}}, {}))
    torch.testing.assert_close(wide, plain)


def test_layers_have_the_weights_but_not_the_power() -> None:
    """Their maps may be negative."""
    backbone = make(**TIMM, layers=["blocks.6"], pooling={"sigma": 0.285, "power": 2.0})
    network: Any = backbone.network
    maps: list[Tensor] = []
    network.network.get_submodule("blocks.6").register_forward_hook(lambda _, __, found: maps.append(found))
    images = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = backbone(images)[:, 1280:]
    assert maps[0].min() < 0
    means = expected(maps[0], 0.285, 1.0)
    np.testing.assert_allclose(
        found.numpy(), means / np.linalg.norm(means, axis=1, keepdims=True), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [("torchvision", "mobilenet_v2"), ("torchvision", "vgg11"), ("timm", "vit_tiny_patch16_224")],
)
def test_networks_without_a_mean_over_positions(kind: str, architecture: str) -> None:
    """One takes it outside of its layers, one keeps 7 x 7 positions, one has no feature maps."""
    with pytest.raises(BackboneError, match=rf"backbone.pooling replaces .*; {architecture} has none"):
        make(224, kind=kind, architecture=architecture, pooling={"sigma": 0.3})
