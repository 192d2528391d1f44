"""Embedding networks compared with the papers' descriptions."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.ndimage import convolve1d
from torch import Tensor, nn
from torch.nn import functional as F

from training.backbones.backbone import Backbone
from training.backbones.conv4 import Readout
from training.backbones.dropblock import DropBlock
from training.backbones.pixels import Pixels
from training.backbones.resnet12 import ResidualBlock
from training.config import BackboneConfig, DropBlockConfig
from training.config.backbone import ReadoutConfig
from training.errors import BackboneError


def make(size: int = 84, **keys: object) -> Backbone:
    torch.manual_seed(0)
    return Backbone(BackboneConfig.model_validate(keys), size)


def images(count: int, size: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, size, size, 3), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("kind", "global_pooling", "size", "parameters"),
    [("conv4", False, 1600, 112_832), ("resnet12", False, 16_000, 12_424_320), ("resnet12", True, 640, 12_424_320)],
)
def test_sizes_at_84_pixels(kind: str, global_pooling: bool, size: int, parameters: int) -> None:
    """d = 1600 and 16000 as in the paper; ResNet-12 has 12.4 million weights."""
    backbone = make(kind=kind, global_pooling=global_pooling).eval()
    assert sum(p.numel() for p in backbone.parameters()) == parameters
    assert sum(p.numel() for p in backbone.parameters() if p.requires_grad) == parameters
    with torch.no_grad():
        embeddings = backbone(torch.zeros(2, 84, 84, 3, dtype=torch.uint8))
    assert embeddings.shape == (2, size)
    assert embeddings.dtype == torch.float32
    assert backbone.embedding_size == size


def test_conv4_ends_with_its_last_relu_or_with_what_that_gets() -> None:
    with_relu, without = (make(size=28, last_relu=last_relu).eval() for last_relu in (True, False))
    pictures = images(3, 28)
    with torch.no_grad():
        torch.testing.assert_close(F.relu(without(pictures)), with_relu(pictures))
        assert without(pictures).min() < 0


@pytest.mark.parametrize(
    ("power", "blur", "maximum"), [(1.4, 0.15, 0.0), (1.0, 0.2, 0.5), (2.0, 0.0, 0.0), (1.0, 0.0, 0.0), (1.4, 0.1, 0.6)]
)
def test_conv4_reads_out_a_power_a_blur_and_the_maxima_of_its_last_map(
    power: float, blur: float, maximum: float
) -> None:
    backbone = Backbone(BackboneConfig(kind="conv4", last_relu=False), 80)
    config = ReadoutConfig(power=power, blur=blur, maximum=maximum)
    readout = Readout(64, config)
    maps = torch.randn(2, 64, 5, 4, generator=torch.Generator().manual_seed(0))
    powers = (maps.sign() * maps.abs() ** power).double().numpy()
    line = np.array([blur, 1.0, blur])
    blurred = convolve1d(convolve1d(powers, line, axis=2, mode="constant"), line, axis=3, mode="constant").reshape(
        2, -1
    )
    maxima = powers.max(axis=(2, 3))
    lengths = (np.linalg.norm(blurred, axis=1) / np.linalg.norm(maxima, axis=1))[:, None]
    expected = np.concatenate([blurred, maximum * lengths * maxima], axis=1) if maximum else blurred
    np.testing.assert_allclose(readout(maps).numpy(), expected, rtol=1e-4, atol=1e-5)
    torch.manual_seed(0)
    with_readout = Backbone(backbone.config.model_copy(update={"readout": config}), 80)
    with_readout.load_state_dict(backbone.state_dict())  # it adds nothing to a checkpoint
    assert with_readout.embedding_size == 1600 + 64 * (maximum > 0)
    x = images(2, 80)
    pixels = backbone.pixels
    assert pixels is not None
    maps = nn.Sequential(*list(backbone.eval().network.children())[:-1])(pixels(x))
    torch.testing.assert_close(with_readout.eval()(x), readout(maps))


def test_resnet12_is_the_papers() -> None:
    """Blocks of 64, 160, 320 and 640 channels; three 3x3 convolutions, and one of 1x1 as shortcut."""
    blocks = [part for part in make(kind="resnet12").modules() if isinstance(part, ResidualBlock)]
    shapes = [[tuple(part.weight.shape) for part in block.modules() if isinstance(part, nn.Conv2d)] for block in blocks]
    assert shapes == [
        [(c, before, 3, 3), (c, c, 3, 3), (c, c, 3, 3), (c, before, 1, 1)]
        for before, c in [(3, 64), (64, 160), (160, 320), (320, 640)]
    ]
    assert all(part.bias is None for part in make().modules() if isinstance(part, nn.Conv2d))


def test_a_residual_block_pools_after_the_last_activation() -> None:
    """Written as in the paper: sum, LeakyReLU(0.1), max-pool."""
    block = ResidualBlock(3, 8).eval()
    x = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    layers = list(block.residual)
    assert [type(layer) for layer in layers] == [
        nn.Conv2d,
        nn.BatchNorm2d,
        nn.LeakyReLU,
        nn.Conv2d,
        nn.BatchNorm2d,
        nn.LeakyReLU,
        nn.Conv2d,
        nn.BatchNorm2d,
    ]
    expected = F.max_pool2d(F.leaky_relu(block.residual(x) + block.shortcut(x), 0.1), 2)
    torch.testing.assert_close(block(x), expected)


def test_the_network_gets_its_channels_in_the_configured_order() -> None:
    x = images(2, 4)
    rgb = x.permute(0, 3, 1, 2) / 255.0
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]
    wanted = {"rgb": rgb, "bgr": rgb[:, [2, 1, 0]], "grey": rgb.mean(dim=1, keepdim=True)}
    for colour, planes in wanted.items():
        count = planes.shape[1]
        backbone = make(16, colour=colour, mean=mean[:count], std=std[:count])
        assert backbone.pixels is not None
        shape = (1, count, 1, 1)
        expected = (planes - torch.tensor(mean[:count]).reshape(shape)) / torch.tensor(std[:count]).reshape(shape)
        taken = replace(backbone.pixels.format, image_size=4)
        torch.testing.assert_close(Pixels(taken)(x), expected)
        torch.testing.assert_close(torch.from_numpy(taken.planes(x.numpy())), expected)  # what does without torch


def test_l2_comes_before_the_scale() -> None:
    keys = {"channels": 8, "normalise": "l2"}
    x = images(5, 32)
    unit = make(32, **keys).eval()(x)
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(5))
    torch.testing.assert_close(make(32, **keys, scale="sqrt_d").eval()(x), unit / math.sqrt(32))


@pytest.mark.parametrize("kind", ["conv4", "resnet12"])
def test_embeddings_are_float32_under_autocast(kind: str) -> None:
    backbone = make(32, kind=kind, channels=8, normalise="l2")
    with torch.autocast("cpu", torch.bfloat16):
        embeddings = backbone(images(4, 32))
    assert embeddings.dtype == torch.float32
    # Normalised after the rounding to bfloat16, not before it.
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(4))


@pytest.mark.parametrize("kind", ["conv4", "resnet12"])
def test_gradients_reach_every_parameter(kind: str) -> None:
    backbone = make(32, kind=kind, channels=8)
    backbone(images(4, 32)).square().sum().backward()
    for name, parameter in backbone.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_images_of_another_type_or_size_are_refused() -> None:
    backbone = make(32, channels=8)
    for wrong in (images(2, 28), images(2, 32).float(), torch.zeros(2, 640)):
        with pytest.raises(BackboneError, match=r"uint8 images \(n, 32, 32, 3\)"):
            backbone(wrong)
    with pytest.raises(BackboneError, match="16 px at least, got 12"):
        make(12)
    with pytest.raises(BackboneError, match="have 1600 numbers"):
        make(84, embedding_size=640)


def test_identity_takes_only_embeddings() -> None:
    backbone = make(kind="identity", embedding_size=5, normalise="l2", scale="sqrt_d")
    x = torch.randn(3, 5)
    torch.testing.assert_close(backbone(x), x / x.norm(dim=1, keepdim=True) / math.sqrt(5))
    assert backbone.frozen
    assert not any(p.requires_grad for p in backbone.parameters())
    with pytest.raises(BackboneError, match="embedding_size to 7"):
        backbone(torch.randn(3, 7))
    with pytest.raises(BackboneError, match=r"another backbone\.kind"):
        backbone(images(3, 84))


def drop_block(updates: int, size: int, **keys: object) -> DropBlock:
    """A DropBlock in training mode, just before its update number `updates`."""
    module = DropBlock(DropBlockConfig.model_validate({"updates": 100, **keys}), size)
    module.updates.fill_(updates - 1)
    return module


@pytest.mark.parametrize(("done", "rate"), [(1, 0.001), (50, 0.05), (100, 0.1), (10_000, 0.1)])
def test_drop_rate_anneals_as_in_metaoptnet(done: int, rate: float) -> None:
    """keep_rate = max(1 - drop_rate / updates * num_batches_tracked, 1 - drop_rate)."""
    module = drop_block(done, 10, rate=0.1)
    module(torch.ones(1, 1, 10, 10))
    assert int(module.updates) == done
    keep_rate = max(1 - 0.1 / 100 * done, 1 - 0.1)
    assert float(module.rate) == pytest.approx(1 - keep_rate) == pytest.approx(rate)


@pytest.mark.parametrize(("size", "block"), [(10, 5), (5, 5), (10, 1), (7, 3)])
def test_gamma_is_equation_1_of_the_paper(size: int, block: int) -> None:
    """gamma = (1 - keep) / block^2 * size^2 / (size - block + 1)^2, equation 1."""
    module = drop_block(100, size, rate=0.1, block_size=block)
    module(torch.ones(1, 1, size, size))
    expected = 0.1 / block**2 * size**2 / (size - block + 1) ** 2
    assert float(module.gamma) == pytest.approx(expected)


@pytest.mark.parametrize(("size", "block"), [(10, 5), (5, 5), (10, 1), (7, 3)])
def test_every_position_is_kept_with_its_probability(size: int, block: int) -> None:
    """The probability is (1 - gamma)^n, with n the number of blocks that cover the position; 5 standard errors."""
    torch.manual_seed(0)
    module = drop_block(100, size, rate=0.1, block_size=block)
    count = 20_000
    x = torch.ones(1, count, size, size)
    kept = (module(x) > 0).float().mean(dim=(0, 1))
    places = torch.ones(1, 1, size - block + 1, size - block + 1)
    covering = F.conv_transpose2d(places, torch.ones(1, 1, block, block))[0, 0]
    expected = (1 - module.gamma) ** covering
    error = (expected * (1 - expected) / count).sqrt()
    assert bool(((kept - expected).abs() < 5 * error).all())
    # Blocks overlap, so slightly fewer positions are dropped than the rate.
    assert 0.9 - 0.003 < float(kept.mean()) < 0.92


def test_dropping_keeps_the_mean() -> None:
    torch.manual_seed(0)
    module = drop_block(100, 10, rate=0.3, block_size=5)
    ones = module(torch.ones(8, 16, 10, 10))
    assert float(ones.mean()) == pytest.approx(1.0, abs=1e-5)
    x = torch.rand(64, 64, 10, 10)
    assert float(module(x).mean()) == pytest.approx(float(x.mean()), rel=5e-3)
    values = ones.unique()
    assert values[0] == 0
    assert len(values) == 2  # all kept values are scaled by the same number


def test_blocks_are_dropped_whole() -> None:
    torch.manual_seed(0)
    module = drop_block(100, 10, rate=0.05, block_size=3)
    gone = (module(torch.ones(1, 4000, 10, 10))[0] == 0).float()
    assert 0.02 < float(gone.mean()) < 0.06
    whole = F.avg_pool2d(gone[:, None], 3, stride=1) > 1 - 1e-6
    again = F.conv_transpose2d(whole.float(), torch.ones(1, 1, 3, 3))[:, 0] > 0
    assert torch.equal(again, gone > 0)


def test_nothing_is_dropped_in_evaluation() -> None:
    module = drop_block(100, 5).eval()
    x = torch.randn(2, 3, 5, 5)
    assert module(x) is x
    assert int(module.updates) == 99


def test_resnet12_drops_after_its_last_two_blocks_and_saves_its_update_count() -> None:
    keys = {"kind": "resnet12", "channels": 8, "drop_block": {"updates": 4, "rate": 0.5}}
    backbone = make(84, **keys)
    drops = {n: m for n, m in backbone.named_modules() if isinstance(m, DropBlock)}
    assert {name: (m.size, m.config.block_size) for name, m in drops.items()} == {
        "network.2.drop_block": (10, 5),
        "network.3.drop_block": (5, 5),
    }
    x = images(2, 84)
    for _ in range(3):
        backbone(x)
    resumed = make(84, **keys)
    resumed.load_state_dict(backbone.state_dict())
    for module in resumed.modules():
        if isinstance(module, DropBlock):
            assert int(module.updates) == 3
            assert float(module.rate) == pytest.approx(0.5 * 3 / 4)
    resumed(x).sum().backward()  # gradients pass through the masks
    plain = make(84, kind="resnet12", channels=8)
    plain.load_state_dict(backbone.state_dict(), strict=False)
    torch.testing.assert_close(plain.eval()(x), backbone.eval()(x))


def test_a_block_larger_than_its_feature_map_is_refused() -> None:
    with pytest.raises(BackboneError, match="has 2 x 2 positions; use 2 at most"):
        make(32, kind="resnet12", channels=8, drop_block={"block_size": 5})
