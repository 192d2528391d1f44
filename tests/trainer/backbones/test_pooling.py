"""Pooling with the most weight in the centre: its numbers, and the means of networks and graphs that it replaces."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from comln_serve.bundle import load_bundle
from comln_serve.engine.embedding.backbone import OnnxBackbone
from tests.support.commands import Command
from tests.support.graphs import NODE, NORMALISATION, SIZE, Change, set_constant, write_model
from tests.trainer.backbones.test_backbones import images
from training.backbones.backbone import Backbone
from training.backbones.pooling import CentrePooling
from training.config import BackboneConfig
from training.errors import BackboneError

TIMM = {"kind": "timm", "architecture": "tf_efficientnet_lite0"}
RESNET = {"kind": "torchvision", "architecture": "resnet18"}


def make(size: int = 64, **keys: object) -> Backbone:
    torch.manual_seed(0)
    return Backbone(BackboneConfig.model_validate(keys), size).eval()


def of_graph(path: Path, **keys: object) -> Backbone:
    return make(SIZE, kind="onnx", path=str(path), **{"output": "flat", **NORMALISATION, **keys})


def replacing(made: onnx.NodeProto, **constants: object) -> Change:
    """The model with this node in the place of its mean over positions."""

    def change(graph: onnx.GraphProto) -> None:
        at = next(i for i, node in enumerate(graph.node) if node.op_type == "GlobalAveragePool")
        graph.node[at].CopyFrom(made)
        for name, value in constants.items():
            set_constant(graph, name, value)

    return change


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
    x = images(2, 64)
    with torch.no_grad():
        found = backbone(x)
    np.testing.assert_allclose(found.numpy(), expected(maps[0], 0.285, power), rtol=1e-4, atol=1e-5)


def test_a_wide_gaussian_is_the_mean() -> None:
    x = images(2, 64)
    with torch.no_grad():
        wide, plain = (make(**TIMM, layers=["blocks.6"], **more)(x) for more in ({"pooling": {"sigma": 1e4}}, {}))
    torch.testing.assert_close(wide, plain)


def test_layers_have_the_weights_but_not_the_power() -> None:
    """Their maps may be negative."""
    backbone = make(**TIMM, layers=["blocks.6"], pooling={"sigma": 0.285, "power": 2.0})
    network: Any = backbone.network
    maps: list[Tensor] = []
    network.network.get_submodule("blocks.6").register_forward_hook(lambda _, __, found: maps.append(found))
    x = images(2, 64)
    with torch.no_grad():
        found = backbone(x)[:, 1280:]
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


@pytest.mark.parametrize("power", [1.0, 2.0])
@pytest.mark.parametrize(
    ("opset", "change"),
    [
        (8, None),
        # The axes are an attribute before operator set 18 and an input from it on.
        (17, replacing(NODE("ReduceMean", ["embeddings"], ["pooled"], keepdims=1, axes=[2, 3]))),
        (18, replacing(NODE("ReduceMean", ["embeddings", "axes"], ["pooled"], keepdims=0), axes=np.array([-2, -1]))),
    ],
)
def test_the_mean_of_a_graph(tmp_path: Path, power: float, opset: int, change: Change | None) -> None:
    path = write_model(tmp_path / "model.onnx", opset=opset, change=change)
    pooled = of_graph(path, pooling={"sigma": 0.3, "power": power})
    x = images(3, SIZE)
    maps = of_graph(path, output="embeddings")(x).unflatten(1, (6, SIZE - 2, SIZE - 2))
    np.testing.assert_allclose(pooled(x).numpy(), expected(maps, 0.3, power), rtol=1e-4)


def test_a_graph_with_channels_last(tmp_path: Path) -> None:
    """As TensorFlow's have them; its sides differ."""
    nodes = [
        NODE("Slice", ["images", "starts", "ends", "axes"], ["map"]),
        NODE("ReduceMean", ["map"], ["means"], axes=[1, 2], keepdims=0),
    ]
    numbers = {"starts": [0], "ends": [7], "axes": [2]}
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", SIZE, SIZE, 3])],
        [helper.make_tensor_value_info("means", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(np.array(value), name) for name, value in numbers.items()],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    x = images(2, SIZE)
    backbone = make(
        SIZE, kind="onnx", path=str(path), layout="nhwc", mean=[0, 0, 0], std=[1, 1, 1], pooling={"sigma": 0.3}
    )
    planes = x[:, :, :7].permute(0, 3, 1, 2) / 255
    np.testing.assert_allclose(backbone(x).numpy(), expected(planes, 0.3, 1.0), rtol=1e-4)


@pytest.mark.parametrize(("output", "maker"), [("logits", "MatMul"), ("embeddings", "Relu")])
def test_graphs_whose_output_is_no_mean(tmp_path: Path, output: str, maker: str) -> None:
    path = write_model(tmp_path / "model.onnx")
    with pytest.raises(BackboneError, match=rf"{output} is made by {maker}, not by the mean over"):
        of_graph(path, output=output, pooling={"sigma": 0.3})


@pytest.mark.parametrize("flags", [["--pooling", "0.3,2"], ["--pooling", "0.3"]])
def test_wrapping_a_model(tmp_path: Path, comln_train: Command, flags: list[str]) -> None:
    """The command on the card makes the same bundle again."""
    path = write_model(tmp_path / "model.onnx")
    given = [f"--{key}={','.join(map(str, value))}" for key, value in NORMALISATION.items()]
    comln_train("wrap", path, "--to", tmp_path / "one", *given, *flags)
    bundle = load_bundle(tmp_path / "one")
    power = 2.0 if "," in flags[1] else 1.0
    assert bundle.manifest.training.config["backbone"]["pooling"] == {"sigma": 0.3, "power": power}
    x = images(3, SIZE)
    maps = of_graph(path, output="embeddings")(x).unflatten(1, (6, SIZE - 2, SIZE - 2))
    means = expected(maps, 0.3, power)
    found = OnnxBackbone(bundle, "cpu").embed(x.numpy())
    np.testing.assert_allclose(found, means / np.linalg.norm(means, axis=1, keepdims=True), rtol=1e-4, atol=1e-5)
    again = shlex.split(bundle.manifest.training.command)
    at = again.index("--pooling")
    assert again[at : at + 2] == flags
    again[again.index("--to") + 1], again[2] = str(tmp_path / "two"), str(path)
    comln_train(*again[1:])
    assert load_bundle(tmp_path / "two").embedder_sha256 == bundle.embedder_sha256


@pytest.mark.parametrize(
    ("value", "message"),
    [("0.3,2,1", "SIGMA or SIGMA,POWER; got 3 numbers"), ("0.3,0.5", "--pooling.power.*1"), ("9", "")],
)
def test_wrong_flags(tmp_path: Path, comln_train: Command, value: str, message: str) -> None:
    path = write_model(tmp_path / "model.onnx")
    comln_train("wrap", path, "--to", tmp_path / "one", "--pooling", value, status=2 if message else 0)
    assert re.search(message, comln_train.told)


def average_pool(**attributes: object) -> Change:
    return replacing(NODE("AveragePool", ["embeddings"], ["pooled"], **attributes))


def test_an_average_pool_over_the_whole_map_is_a_mean(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.onnx", change=average_pool(kernel_shape=[SIZE - 2] * 2))
    x = images(2, SIZE)
    torch.testing.assert_close(of_graph(path, pooling={"sigma": 1e4})(x), of_graph(path)(x))


@pytest.mark.parametrize(
    "attributes",
    [{"kernel_shape": [SIZE - 2] * 2, "auto_pad": "SAME_UPPER"}, {"kernel_shape": [3, 3], "strides": [12, 12]}],
)
def test_an_average_over_less_is_refused(tmp_path: Path, attributes: dict[str, object]) -> None:
    path = write_model(tmp_path / "model.onnx", change=average_pool(**attributes))
    with pytest.raises(BackboneError, match=r"AveragePool makes .* no mean over two axes"):
        of_graph(path, pooling={"sigma": 0.3})


def test_a_power_is_for_maps_after_a_relu(tmp_path: Path) -> None:
    def skip_relu(graph: onnx.GraphProto) -> None:
        pool = next(node for node in graph.node if node.op_type == "GlobalAveragePool")
        pool.input[0] = "features"

    path = write_model(tmp_path / "model.onnx", change=skip_relu)
    of_graph(path, pooling={"sigma": 0.3})
    with pytest.raises(BackboneError, match=r"many negative numbers, which would count as 0\. Give sigma alone"):
        of_graph(path, pooling={"sigma": 0.3, "power": 2})


def test_float16_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.onnx", dtype=TensorProto.FLOAT16)
    with pytest.raises(BackboneError, match="the feature map is float16; float32 is needed"):
        of_graph(path, pooling={"sigma": 0.3})
