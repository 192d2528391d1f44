"""ONNX graphs as backbones, with small graphs made here."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from tests.support.graphs import CLASSIFIER, KERNEL, NODE, NORMALISATION, SIZE, ending, set_constant, write_model
from tests.trainer.backbones.test_backbones import images
from training.backbones.backbone import Backbone
from training.backbones.onnx_builder import bundle_graph, store_in_half
from training.backbones.onnx_model import OnnxNetwork
from training.config import BackboneConfig
from training.errors import BackboneError


def make(path: Path, *, size: int = SIZE, **keys: object) -> Backbone:
    tree: dict[str, object] = {"kind": "onnx", "path": str(path)}
    if keys.get("layout") != "as_is":
        tree |= NORMALISATION
    return Backbone(BackboneConfig.model_validate(tree | keys), size)


def exported(backbone: Backbone, *, half: bool = False) -> ort.InferenceSession:
    network = backbone.network
    assert isinstance(network, OnnxNetwork)
    graph = bundle_graph(
        network.file.graph,
        backbone.pixels and backbone.pixels.format,
        network.file.layout,
        backbone.embedding_size,
        flatten=network.file.flattens,
        normalise=backbone.config.normalise == "l2",
        scale=backbone.scale,
    )
    if half:
        store_in_half(graph)
    onnx.checker.check_model(graph, full_check=True)
    return ort.InferenceSession(graph.SerializeToString())


def by_torch(x: torch.Tensor, colour: str = "rgb") -> dict[str, torch.Tensor]:
    """The model in plain torch: from images to each of its tensors."""
    planes = x.permute(0, 3, 1, 2) / 255
    if colour == "grey":
        planes = planes.mean(dim=1, keepdim=True)
    elif colour == "bgr":
        planes = planes[:, [2, 1, 0]]
    channels = planes.shape[1]
    mean, std = (torch.tensor(NORMALISATION[key][:channels]).reshape(1, -1, 1, 1) for key in ("mean", "std"))
    kernel = torch.from_numpy(KERNEL[:, :channels].copy())
    features = torch.nn.functional.conv2d((planes - mean) / std, kernel).relu()
    pooled = features.mean(dim=(2, 3))
    return {
        "embeddings": features.flatten(1),
        "pooled": pooled,
        "flat": pooled,
        "logits": pooled @ torch.from_numpy(CLASSIFIER),
    }


def agree(backbone: Backbone, tensor: str, tolerance: float = 1e-4, colour: str = "rgb") -> None:
    """The trainer's forward, the exported graph and plain torch agree, on batches of one and of seven."""
    session = exported(backbone)
    for count in (1, 7):
        x = images(count, SIZE, seed=count)
        expected = by_torch(x, colour)[tensor]
        found = backbone(x)
        served = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
        assert found.dtype == torch.float32
        assert found.shape == (count, backbone.embedding_size)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(torch.from_numpy(served), expected, rtol=tolerance, atol=tolerance)
    (image,), (output,) = session.get_inputs(), session.get_outputs()
    assert (image.type, image.shape) == ("tensor(uint8)", ["batch", SIZE, SIZE, 3])
    assert (output.type, output.shape) == ("tensor(float)", ["batch", backbone.embedding_size])


@pytest.mark.parametrize("opset", [8, 11, 17, 21])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_float_model(tmp_path: Path, opset: int, layout: str) -> None:
    path = write_model(tmp_path / "m.onnx", opset=opset, layout=layout)
    agree(make(path, layout=layout), "logits")


@pytest.mark.parametrize("colour", ["bgr", "grey"])
def test_other_colours(tmp_path: Path, colour: str) -> None:
    path = write_model(tmp_path / "m.onnx", colour=colour)
    count = 1 if colour == "grey" else 3
    keys = {key: values[:count] for key, values in NORMALISATION.items()}
    agree(make(path, colour=colour, **keys), "logits", colour=colour)


@pytest.mark.parametrize(("output", "size"), [("flat", 6), ("pooled", 6), ("embeddings", 600)])
def test_an_inner_tensor_as_the_embedding(tmp_path: Path, output: str, size: int) -> None:
    """Of any rank; nodes that it does not need are left out of the bundle."""
    backbone = make(write_model(tmp_path / "m.onnx"), output=output)
    assert backbone.embedding_size == size
    agree(backbone, output)
    network = backbone.network
    assert isinstance(network, OnnxNetwork)
    assert [tensor.name for tensor in network.file.graph.graph.initializer] == ["kernel"]


def test_float16_in_and_out(tmp_path: Path) -> None:
    agree(make(write_model(tmp_path / "m.onnx", dtype=TensorProto.FLOAT16)), "logits", 3e-2)


def test_dynamic_and_fixed_shapes(tmp_path: Path) -> None:
    """A fixed batch of one and dynamic sides, as exporters write them, are replaced by what a bundle needs."""
    agree(make(write_model(tmp_path / "m.onnx", batch=1, size="side")), "logits")


def test_weights_in_a_file_beside_the_graph(tmp_path: Path) -> None:
    """They become part of the bundle's single file; without them the graph is refused."""
    path = write_model(tmp_path / "m.onnx")
    inside = make(path)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="m.data", size_threshold=0)
    assert len(path.read_bytes()) < KERNEL.nbytes + CLASSIFIER.nbytes
    outside = make(path)
    outside.load_state_dict(inside.state_dict())  # the same graph, wherever its weights are stored
    agree(outside, "logits")
    (tmp_path / "m.data").unlink()
    with pytest.raises(BackboneError, match=r"m\.onnx: "):
        make(path)


def test_a_graph_that_takes_uint8_images(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.onnx", dtype=TensorProto.UINT8, layout="nhwc")
    backbone = make(path, layout="as_is", output="flat")
    session = exported(backbone)
    for count in (1, 7):
        x = images(count, SIZE)
        kernel = torch.from_numpy(KERNEL)
        planes = x.permute(0, 3, 1, 2).float()
        expected = torch.nn.functional.conv2d(planes, kernel).relu().mean(dim=(2, 3))
        torch.testing.assert_close(backbone(x), expected, rtol=1e-4, atol=1e-2)
        (served,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(served), expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("opset", [13, 18])
def test_norm_and_scale_are_in_the_graph(tmp_path: Path, opset: int) -> None:
    path = write_model(tmp_path / "m.onnx", opset=opset)
    backbone = make(path, output="flat", normalise="l2", scale="sqrt_d")
    session = exported(backbone)
    x = images(5, SIZE)
    expected = torch.nn.functional.normalize(by_torch(x)["flat"], dim=1) / 6**0.5
    (served,) = session.run(None, {"images_1": x.numpy()})  # the name "images" is used by the model itself
    torch.testing.assert_close(backbone(x), expected)
    torch.testing.assert_close(torch.from_numpy(served), expected)


def test_an_embedding_of_zeros_stays_zero(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.onnx", change=lambda graph: set_constant(graph, "kernel", 0 * KERNEL))
    backbone = make(path, output="flat", normalise="l2")
    session, x = exported(backbone), images(2, SIZE)
    assert not backbone(x).any()
    assert not np.asarray(session.run(None, {"images_1": x.numpy()})[0]).any()


def test_names_that_subgraphs_take_from_outside_are_kept(tmp_path: Path) -> None:
    """The embedding is computed in a branch, from a weight that only the branch reads."""

    def branch(graph: onnx.GraphProto) -> None:
        branches = {
            name: helper.make_graph(
                [NODE("MatMul", ["flat", "classifier"], [name])],
                name,
                [],
                [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
            )
            for name in ("then_branch", "else_branch")
        }
        graph.node[-1].CopyFrom(NODE("If", ["yes"], ["logits"], **branches))
        graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))

    agree(make(write_model(tmp_path / "m.onnx", change=branch), output="logits"), "logits")


def test_a_run_is_resumed_only_with_the_same_graph(tmp_path: Path) -> None:
    first = make(write_model(tmp_path / "a.onnx"))
    moved = make(write_model(tmp_path / "b.onnx"))
    moved.load_state_dict(first.state_dict())
    assert not any(p.requires_grad for p in first.parameters())
    assert not first(images(2, SIZE)).requires_grad
    other = write_model(tmp_path / "c.onnx", change=lambda graph: set_constant(graph, "kernel", 2 * KERNEL))
    with pytest.raises(BackboneError, match=r"c\.onnx is not the graph this run was trained with"):
        make(other).load_state_dict(first.state_dict())


def test_weights_in_16_bits(tmp_path: Path) -> None:
    """Half the file size, nearly the same embeddings; weights beyond 16 bits are not converted."""

    rng = np.random.default_rng(3)
    big, wide = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 5000), (5000, 40)))
    big[0, 0] = 1e5

    def enlarge(graph: onnx.GraphProto) -> None:
        set_constant(graph, "classifier", big)
        ending(NODE("MatMul", ["logits", "wide"], ["last"]), wide=wide)(graph)

    backbone = make(write_model(tmp_path / "m.onnx", change=enlarge))
    session, x = exported(backbone, half=True), images(4, SIZE)
    (served,) = session.run(None, {"images_1": x.numpy()})
    difference = np.abs(served - backbone(x).numpy()).max() / np.abs(served).max()
    assert 1e-7 < difference < 1e-3

    network = backbone.network
    assert isinstance(network, OnnxNetwork)
    half = onnx.ModelProto()
    half.CopyFrom(network.file.graph)
    store_in_half(half)
    kinds = {tensor.name: tensor.data_type for tensor in half.graph.initializer}
    assert kinds == {
        "kernel": TensorProto.FLOAT,  # too small to be converted
        "classifier": TensorProto.FLOAT,  # 1e5 is beyond 16 bits
        "wide_half": TensorProto.FLOAT16,
    }


def second_input(graph: onnx.GraphProto) -> None:
    graph.input.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", 4]))
    graph.node.append(NODE("Mul", ["logits", "mask"], ["masked"]))


def second_output(graph: onnx.GraphProto) -> None:
    graph.output.append(helper.make_tensor_value_info("flat", TensorProto.FLOAT, ["batch", 6]))


def batch_of_one(graph: onnx.GraphProto) -> None:
    shape = numpy_helper.from_array(np.array([1, 6]), "shape")
    graph.initializer.append(shape)
    graph.node[-2].CopyFrom(NODE("Reshape", ["pooled", "shape"], ["flat"]))


def flat_images(graph: onnx.GraphProto) -> None:
    graph.input[0].CopyFrom(helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 432]))


BATCH_DEPENDENT = ending(
    NODE("ReduceMean", ["logits"], ["shared"], axes=[0], keepdims=1),
    NODE("Add", ["logits", "shared"], ["sums"]),
    dims=["batch", 4],
)
ONE_NUMBER = ending(NODE("ReduceMean", ["logits"], ["number"], keepdims=0), dims=[])
LABELS = ending(NODE("ArgMax", ["logits"], ["label"], axis=1, keepdims=1), kind=TensorProto.INT64, dims=["batch", 1])
DIVIDED_BY_ZERO = ending(NODE("Div", ["logits", "zero"], ["endless"]), dims=["batch", 4], zero=np.float32(0))
OPERATOR_OF_NOBODY = ending(NODE("Frobnicate", ["logits"], ["unknown"]), dims=["batch", 4])


@pytest.mark.parametrize(
    ("model", "keys", "message"),
    [
        ({"change": second_input}, {}, "must have one input.* it has 2: images float"),
        ({"change": second_output}, {}, r"2 outputs, logits, flat; say with backbone\.output"),
        ({}, {"output": "flatt"}, "no tensor is called 'flatt'. Outputs: logits; .* flat"),
        ({"size": 20}, {}, r"\(batch, 3, 12, 12\).*\(batch, 3, 20, 20\).*image_size"),
        ({}, {"layout": "nhwc"}, r"\(batch, 12, 12, 3\).*backbone\.layout"),
        ({}, {"layout": "as_is"}, "as_is needs a uint8 input; the graph takes images float"),
        (
            {"dtype": TensorProto.UINT8, "layout": "nhwc"},
            {"layout": "nhwc"},
            "needs a float or float16 input; the graph takes images uint8",
        ),
        ({"colour": "grey"}, {}, r"takes images float \(batch, 1, 12, 12\).*colour"),
        ({"change": batch_of_one}, {}, "dynamic batch axis"),
        ({"change": BATCH_DEPENDENT}, {}, "depends on the other images of its batch"),
        ({"change": ONE_NUMBER}, {}, r"must give \(3, d\); the output number is \(\)"),
        ({"change": LABELS}, {}, "floating-point numbers; the output label is int64"),
        ({"change": DIVIDED_BY_ZERO}, {}, "NaN or infinity"),
        ({"opset": 7}, {}, "operator set 7; 8 or later"),
        ({"change": flat_images}, {}, r"four axes .*takes images float \(batch, 432\)"),
        ({"change": OPERATOR_OF_NOBODY}, {}, "cannot open this graph. Export .* operators of the ONNX standard"),
    ],
)
def test_graphs_that_cannot_be_backbones_are_refused(
    tmp_path: Path, model: dict[str, Any], keys: dict[str, Any], message: str
) -> None:
    path = write_model(tmp_path / "model.onnx", **model)
    with pytest.raises(BackboneError, match=message) as caught:
        make(path, **keys)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_a_file_that_is_not_a_graph_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    message = "no such file" if content is None else "not a"
    with pytest.raises(BackboneError, match=rf"model\.onnx: {message}"):
        make(path)
