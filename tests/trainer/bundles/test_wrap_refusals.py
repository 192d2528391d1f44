"""Models and options that `comln-train wrap` refuses; the flag to give is named."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from tests.support.full_disk import full_disk
from tests.support.graphs import KERNEL, NODE, SIZE, ending, output_only, set_constant, write_model
from tests.trainer.bundles.wrapping import refusal, wrap
from training.cli import main


@pytest.mark.parametrize("ring", [["images"], ["a", "b"]], ids=["the input onto itself", "two nodes"])
def test_a_graph_that_goes_round_in_a_circle_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ring: list[str]
) -> None:
    def change(graph: onnx.GraphProto) -> None:
        for read, made in zip(ring, ring[1:] + ring[:1], strict=True):
            graph.node.append(NODE("Identity", [read], [made]))
        output_only(ring[0], ["batch", 4])(graph)

    assert "m.onnx" in refusal(capsys, write_model(tmp_path / "m.onnx", change=change))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--mean", "0.5", "0.5", "0.5"), "unrecognized arguments: 0.5 0.5; the numbers of one option are separated"),
        (("--mean", "-x,0,0"), "expected one argument; to give a negative value, write --mean=-VALUE"),
        (("--nothing",), "unrecognized arguments: --nothing\n"),
    ],
)
def test_numbers_that_are_given_in_another_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit):
        main(["wrap", "m.onnx", "--to", str(tmp_path / "mine"), *flags])
    assert said in capsys.readouterr().err


NO_FLOATS = ending(NODE("ArgMax", ["logits"], ["best"], axis=1, keepdims=0), kind=TensorProto.INT64, dims=["batch"])


NUMBER = ["step", "zero"]
INTEGERS = {
    "step": np.float32(0.1),
    "zero": np.uint8(128),
    "weight": np.arange(24, dtype=np.uint8).reshape(6, 4),
    "bias": np.arange(4, dtype=np.uint8),
}
# The last layer as QLinearMatMul, as quantising in the format QOperator makes it; here beside that of floats.
PRODUCTS = (
    NODE("QuantizeLinear", ["flat", *NUMBER], ["bytes"]),
    NODE("QLinearMatMul", ["bytes", *NUMBER, "weight", *NUMBER, *NUMBER], ["products"]),
)
IN_8_BITS = ending(*PRODUCTS, NODE("DequantizeLinear", ["products", *NUMBER], ["last"]), dims=["batch", 4], **INTEGERS)
IN_8_BITS_WITH_BIAS_AND_PROBABILITIES = ending(
    *PRODUCTS,
    NODE("QLinearAdd", ["products", *NUMBER, "bias", *NUMBER, *NUMBER], ["scores"]),
    NODE("QLinearSoftmax", ["scores", *NUMBER, *NUMBER], ["probabilities"]),
    NODE("DequantizeLinear", ["probabilities", *NUMBER], ["last"]),
    dims=["batch", 4],
    **INTEGERS,
)


def of_scales_of_the_batch(graph: onnx.GraphProto) -> None:
    """As a dynamically quantised network has them before each layer, here before the features."""
    graph.node[-2].input[0] = "near"
    nodes = [
        NODE("DynamicQuantizeLinear", ["pooled"], ["bytes", "step", "zero"]),
        NODE("DequantizeLinear", ["bytes", "step", "zero"], ["near"]),
    ]
    for place, node in enumerate(nodes, len(graph.node) - 2):
        graph.node.insert(place, node)


REFUSED: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "layout of another type": ({}, ["--layout", "as_is"], "--layout nchw or nhwc"),
    "floats for bytes": ({"dtype": TensorProto.UINT8, "layout": "nhwc"}, ["--layout", "nhwc"], "--layout as_is"),
    "bytes, channels second": ({"dtype": TensorProto.UINT8}, [], "uint8"),
    "doubles": ({"dtype": TensorProto.DOUBLE}, [], "float32"),
    "another image size": ({}, ["--image-size", "20"], "--image-size"),
    "too large": ({"size": "side"}, ["--image-size", "5000"], "--image-size"),
    "a crop of more than all": ({}, ["--crop-fraction", "1.5"], "--crop-fraction"),
    "a view that predictions have": ({}, ["--support-views", "1.0"], "support_views must differ"),
    "a view of a padded image": ({}, ["--resize", "pad", "--support-views", "0.9"], "support_views needs resize"),
    "a crop of a padded image": ({}, ["--resize", "pad", "--crop-fraction", "0.9"], "crop_fraction needs resize"),
    "grey of three channels": ({}, ["--colour", "grey"], "--colour rgb or bgr"),
    "channels elsewhere": ({}, ["--layout", "nhwc"], "--layout"),
    "mean alone": ({}, ["--mean", "0.5"], "--std"),
    "two means": ({}, ["--mean", "0.5,0.5", "--std", "1,1"], "3 numbers"),
    "a deviation of 0": ({}, ["--mean", "0", "--std", "0"], "--std"),
    "a mean of bytes": ({}, ["--mean", "124,116,104", "--std", "58,57,57"], "by 255"),
    "both ways": ({}, ["--mean", "0", "--std", "1", "--normalisation", "raw"], "--normalisation"),
    "normalised inside": (
        {"dtype": TensorProto.UINT8, "layout": "nhwc"},
        ["--normalisation", "half"],
        "--normalisation",
    ),
    "no such tensor": ({}, ["--output", "flatt"], "flat"),
    "integers as the embedding": ({"change": NO_FLOATS}, [], "--output"),
    "a last layer of integers": ({"change": IN_8_BITS}, [], "keep the output as the embedding with --output last"),
    "a last layer of integers, with bias and probabilities": (
        {"change": IN_8_BITS_WITH_BIAS_AND_PROBABILITIES},
        [],
        "keep the output as the embedding with --output last",
    ),
    "dynamically quantised": ({"change": of_scales_of_the_batch}, [], "quantise it statically"),
    "the same for every image": (
        {"change": lambda graph: set_constant(graph, "kernel", 0 * KERNEL)},
        ["--output", "flat"],
        "--output",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_options_are_refused_and_the_flag_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    model, flags, said = REFUSED[case]
    message = refusal(capsys, write_model(tmp_path / "m.onnx", **model), *flags)
    assert said in message
    assert "backbone." not in message  # keys of a recipe, which the user of wrap does not have


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (["batch", 3, 12, 16], "square"),
        (["batch", 432], "four axes"),
        (["batch", "c", "h", "w"], "--layout"),
        (["batch", 3, 12, 3], "--layout"),
    ],
)
def test_inputs_that_are_not_images_or_are_ambiguous(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shape: list[Any], said: str
) -> None:
    def change(graph: onnx.GraphProto) -> None:
        graph.input[0].CopyFrom(helper.make_tensor_value_info("images", TensorProto.FLOAT, shape))

    assert said in refusal(capsys, write_model(tmp_path / "m.onnx", change=change))


def test_a_linear_classifier_of_pixels_has_no_embedding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = np.random.default_rng(0).standard_normal((3 * SIZE**2, 4)).astype(np.float32)
    graph = helper.make_graph(
        [NODE("Flatten", ["x"], ["pixels"]), NODE("MatMul", ["pixels", "w"], ["logits"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    assert "--output" in refusal(capsys, tmp_path / "m.onnx")
    wrap(tmp_path / "m.onnx", "--output", "logits")


def test_outputs_to_choose_from_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(graph: onnx.GraphProto) -> None:
        graph.node.append(NODE("Tanh", ["flat"], ["other"]))
        graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, ["batch", 6]))

    model = write_model(tmp_path / "m.onnx", change=change)
    message = refusal(capsys, model)
    assert all(word in message for word in ("logits", "other", "--output"))
    wrap(model, "--output", "other")


def test_files_that_are_not_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.onnx").write_text("not a graph")
    for name in ("text.onnx", "missing.onnx"):
        assert name in refusal(capsys, tmp_path / name)
    torch.save({}, tmp_path / "m.pt")
    assert "torch.onnx.export" in refusal(capsys, tmp_path / "m.pt")


def test_weights_that_were_left_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_model(tmp_path / "m.onnx")
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    (tmp_path / "m.onnx.data").unlink()
    assert "m.onnx.data" in (message := refusal(capsys, path))
    assert "beside the model" in message


def test_a_full_disk_names_the_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the system on writing, unlike one on opening, names no file."""
    model = write_model(tmp_path / "m.onnx")
    monkeypatch.setattr(Path, "write_bytes", full_disk)
    message = refusal(capsys, model)
    assert message == f"comln-train: {tmp_path / 'models' / 'mine'} cannot be written: No space left on device\n"
