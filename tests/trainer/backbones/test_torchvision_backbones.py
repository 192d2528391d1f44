"""torchvision's networks as backbones; nothing is downloaded."""

from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import safetensors.torch
import torch
import torchvision.models
from torch import Tensor, nn
from torchvision.models import get_model, get_model_weights

from tests.support.training import perturbed
from tests.trainer.backbones.test_backbones import images
from training.backbones import torchvision_model
from training.backbones.backbone import Backbone
from training.config import BackboneConfig
from training.errors import BackboneError

pytestmark = pytest.mark.slow

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def make(size: int = 64, **keys: object) -> Backbone:
    torch.manual_seed(0)
    tree = {"kind": "torchvision", "architecture": "resnet18"} | keys
    return Backbone(BackboneConfig.model_validate(tree), size)


def trained(architecture: str, classes: int) -> nn.Module:
    torch.manual_seed(1)
    return perturbed(get_model(architecture, weights=None, num_classes=classes))


@pytest.mark.parametrize(
    ("architecture", "size"),
    [
        ("alexnet", 4096),
        ("convnext_tiny", 768),
        ("densenet121", 1024),
        ("efficientnet_b0", 1280),
        ("googlenet", 1024),
        ("inception_v3", 2048),
        ("maxvit_t", 512),
        ("mnasnet0_5", 1280),
        ("mobilenet_v2", 1280),
        ("mobilenet_v3_small", 1024),
        ("resnet18", 512),
        ("resnet50", 2048),
        ("resnext50_32x4d", 2048),
        ("shufflenet_v2_x1_0", 1024),
        ("swin_t", 768),
        ("vgg11", 4096),
        ("vit_b_16", 768),
        ("wide_resnet50_2", 2048),
    ],
)
def test_architectures_without_their_last_layer(architecture: str, size: int) -> None:
    """Sizes and numbers of parameters as published, without the layer over 1000 classes."""
    with torch.device("meta"):
        backbone = make(224, architecture=architecture)
    assert backbone.embedding_size == size
    published: Any = get_model_weights(architecture)
    last = 1000 * size + (0 if architecture == "maxvit_t" else 1000)
    # The published number includes auxiliary classifiers only for Inception.
    auxiliary = 0
    if architecture == "inception_v3":
        whole: Any = get_model(architecture, weights=None, init_weights=False)
        auxiliary = sum(p.numel() for p in whole.AuxLogits.parameters())
    count = sum(p.numel() for p in backbone.parameters() if p.requires_grad)
    assert count + last + auxiliary == published.DEFAULT.meta["num_params"]


def test_embeddings_are_the_input_of_the_last_layer() -> None:
    backbone = make(size=64).eval()
    x = images(3, 64)
    network: Any = get_model("resnet18", weights=None)
    network.load_state_dict(backbone.network.state_dict(), strict=False)
    seen: list[Tensor] = []
    network.fc.register_forward_hook(lambda _, args, __: seen.append(args[0]))
    network.eval()((x.permute(0, 3, 1, 2) / 255 - 0.5) / 0.25)
    torch.testing.assert_close(backbone(x), seen[0])


def test_gradients_flow_unless_frozen(tmp_path: Path) -> None:
    backbone = make()
    backbone(images(2, 64)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in backbone.parameters())

    torch.save(trained("resnet18", 1000).state_dict(), tmp_path / "weights.pt")
    frozen = make(weights=str(tmp_path / "weights.pt"), frozen=True, **IMAGENET)
    before = {key: value.clone() for key, value in frozen.state_dict().items()}
    frozen.train()
    embeddings = frozen(images(4, 64))
    assert not embeddings.requires_grad
    assert not any(p.requires_grad for p in frozen.parameters())
    assert not any(module.training for module in frozen.modules())
    for key, value in frozen.state_dict().items():
        assert torch.equal(value, before[key]), key  # including running statistics


@pytest.mark.parametrize("wrap", ["plain", "state_dict", "module", "safetensors"])
def test_weights_from_a_file(tmp_path: Path, wrap: str) -> None:
    """Weights of a model fine-tuned on seven classes, as training scripts save them."""
    network = trained("resnet18", 7)
    state: Any = network.state_dict()
    path = tmp_path / ("w.safetensors" if wrap == "safetensors" else "w.pt")
    if wrap == "safetensors":
        safetensors.torch.save_file(state, path)
    else:
        if wrap == "state_dict":
            state = {"epoch": 3, "state_dict": state}
        elif wrap == "module":
            state = {f"module.{key}": value for key, value in state.items()}
        torch.save(state, path)
    backbone = make(weights=str(path), **IMAGENET).eval()
    x = images(2, 64)
    network.fc = nn.Identity()  # type: ignore[assignment]
    pixels = x.permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(IMAGENET[key]).reshape(1, 3, 1, 1) for key in ("mean", "std"))
    torch.testing.assert_close(backbone(x), network((pixels - mean) / std))


def test_named_weights_bring_their_normalisation(monkeypatch: pytest.MonkeyPatch) -> None:
    """EfficientNetV2-L has another normalisation than ImageNet's usual one."""
    monkeypatch.setattr(torchvision_model, "_build", lambda name, _: get_model(name, weights=None))
    with torch.device("meta"):
        usual = make(64, weights="IMAGENET1K_V1")
        other = make(64, architecture="efficientnet_v2_l", weights="DEFAULT")
        given = make(64, weights="DEFAULT", mean=[0.1, 0.2, 0.3], std=[1, 1, 1])
    assert [b.pixels.format.mean for b in (usual, other, given) if b.pixels is not None] == [
        (0.485, 0.456, 0.406),
        (0.5, 0.5, 0.5),
        (0.1, 0.2, 0.3),
    ]


def test_a_checkpoint_is_restored_without_the_named_weights() -> None:
    """Nothing is downloaded: the checkpoint has the weights."""
    tree = {"kind": "torchvision", "architecture": "resnet18", "weights": "DEFAULT"}
    config = BackboneConfig.model_validate(tree | {"frozen": True})
    backbone = Backbone(config, 64, pretrained=False)
    source = trained("resnet18", 1000).state_dict()
    state = {f"network.{k}": v for k, v in source.items() if not k.startswith("fc.")}
    backbone.load_state_dict(state)
    assert backbone.frozen


def test_weights_that_cannot_be_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr(torchvision.models.resnet.ResNet18_Weights, "get_state_dict", offline)
    with pytest.raises(BackboneError, match=r"no network.*resnet18-.*\.pth.*0\.485"):
        make(weights="DEFAULT")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"architecture": "resnet19"}, "resnet18"),
        ({"architecture": "fcn_resnet50"}, "none of torchvision's"),
        ({"architecture": "squeezenet1_1"}, "does not end in a linear layer"),
        ({"weights": "IMAGENET22K"}, "DEFAULT, IMAGENET1K_V1; or give the path"),
        ({"weights": "./gone.pt", **IMAGENET}, r"gone\.pt: no such file"),
        ({"architecture": "vit_b_32"}, "vit_b_32 does not take images of 64 px .*224"),
    ],
)
def test_networks_that_cannot_be_built_are_refused(keys: dict[str, object], message: str) -> None:
    with torch.device("meta"), pytest.raises(BackboneError, match=message):
        make(**keys)


@pytest.mark.parametrize("content", ["garbage", "other", "list"])
def test_a_file_of_other_weights_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "weights.pt"
    if content == "garbage":
        path.write_bytes(b"not torch")
    else:
        torch.save([1, 2] if content == "list" else nn.Linear(2, 2).state_dict(), path)
    with pytest.raises(BackboneError, match=r"weights\.pt"):
        make(weights=str(path), **IMAGENET)
