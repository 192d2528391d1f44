"""`comln-train wrap`: a bundle that can be served is made from an ONNX model without training."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static

from comln_serve.bundle import load_bundle
from tests.support.graphs import CLASSIFIER, KERNEL, NODE, SIZE, Change, ending, output_only, set_constant, write_model
from tests.trainer.backbones.test_backbones import images
from tests.trainer.backbones.test_onnx_backbones import by_torch
from tests.trainer.bundles.wrapping import MEAN_AND_STD, backbone_of, embed, planes, refusal, unit, wrap

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def check_embeds(bundle: Path, tensor: str, colour: str = "rgb") -> None:
    """The bundle's embeddings are this tensor of the model, by torch, of length 1."""
    x = images(5, SIZE)
    torch.testing.assert_close(embed(bundle, x), unit(by_torch(x, colour)[tensor]))


def insert_first(*nodes: onnx.NodeProto, **constants: object) -> Change:
    """Nodes between the input and the convolution; the last makes "normalised"."""

    def change(graph: onnx.GraphProto) -> None:
        graph.node[0].input[0] = "normalised"
        rest = list(graph.node)
        del graph.node[:]
        graph.node.extend([*nodes, *rest])
        graph.initializer.extend(
            numpy_helper.from_array(np.asarray(value, dtype=np.float32), name) for name, value in constants.items()
        )

    return change


def with_softmax(graph: onnx.GraphProto) -> None:
    """The matrix product becomes Gemm with a transposed weight and a bias, then Softmax."""
    del graph.node[-1]
    set_constant(graph, "classifier", CLASSIFIER.T)
    set_constant(graph, "bias", np.ones(4, dtype=np.float32))
    graph.node.append(NODE("Gemm", ["flat", "classifier", "bias"], ["scores"], transB=1))
    graph.node.append(NODE("Softmax", ["scores"], ["logits"], axis=1))


def with_bias(graph: onnx.GraphProto) -> None:
    graph.node[-1].output[0] = "products"
    set_constant(graph, "bias", np.ones(4, dtype=np.float32))
    graph.node.append(NODE("Add", ["bias", "products"], ["logits"]))


def with_temperature(graph: onnx.GraphProto) -> None:
    with_bias(graph)
    graph.node[-1].output[0] = "scores"
    set_constant(graph, "temperature", np.float32(2))
    graph.node.extend([NODE("Div", ["scores", "temperature"], ["scaled"]), NODE("Softmax", ["scaled"], ["logits"])])


# The output is the largest two scores, in their order.
WITH_THE_BEST = ending(NODE("TopK", ["logits", "two"], ["best", "classes"]), dims=["batch", 2], two=np.array([2]))


def of_one_class(graph: onnx.GraphProto) -> None:
    """Such as a detector of defects: one score for an image, as a probability without an axis of its own."""
    set_constant(graph, "classifier", CLASSIFIER[:, :1])
    nodes = (NODE("Squeeze", ["logits", "one"], ["score"]), NODE("Sigmoid", ["score"], ["probability"]))
    ending(*nodes, dims=["batch"], one=np.array([1]))(graph)


@pytest.mark.parametrize("change", [None, with_softmax, with_bias, with_temperature, WITH_THE_BEST, of_one_class])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_embedding_of_a_classifier_is_the_input_of_its_last_layer(
    tmp_path: Path, layout: str, change: Change | None
) -> None:
    bundle = wrap(write_model(tmp_path / "m.onnx", layout=layout, change=change), *MEAN_AND_STD)
    check_embeds(bundle, "flat")
    assert backbone_of(bundle)["layout"] == layout


def test_a_normalised_projection_is_no_classifier(tmp_path: Path) -> None:
    """As of networks for faces whose batch normalisation was exported as Mul and Add."""

    def normalised(graph: onnx.GraphProto) -> None:
        with_bias(graph)
        set_constant(graph, "scale", np.full(4, 2, dtype=np.float32))
        graph.node.insert(len(graph.node) - 1, NODE("Mul", ["products", "scale"], ["scaled"]))
        graph.node[-1].input[1] = "scaled"

    bundle = wrap(write_model(tmp_path / "m.onnx", change=normalised), *MEAN_AND_STD)
    x = images(3, SIZE)
    torch.testing.assert_close(embed(bundle, x), unit(2 * by_torch(x)["logits"] + 1))


@pytest.mark.parametrize("change", [with_softmax, with_bias])
@pytest.mark.parametrize("static", [True, False])
def test_the_embedding_of_a_quantised_classifier(tmp_path: Path, static: bool, change: Change) -> None:
    class Photos(CalibrationDataReader):
        def __init__(self) -> None:
            mean, std = (torch.tensor(x).view(3, 1, 1) for x in ([0.4, 0.5, 0.6], [0.2, 0.3, 0.4]))
            self.left = [{"images": ((planes(images(4, SIZE)) / 255 - mean) / std).numpy()}]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    model, quantised = write_model(tmp_path / "m.onnx", change=change), tmp_path / "quantised.onnx"
    if static:
        quantize_static(str(model), str(quantised), Photos(), op_types_to_quantize=["MatMul", "Gemm"])
    else:
        quantize_dynamic(str(model), str(quantised), op_types_to_quantize=["MatMul", "Gemm"])
    bundle = wrap(quantised, *MEAN_AND_STD)
    x = images(3, SIZE)
    torch.testing.assert_close(embed(bundle, x), unit(by_torch(x)["flat"]), rtol=0.02, atol=0.02)


PROBABILITIES: dict[str, tuple[Change, str | None]] = {
    "Softmax": (ending(NODE("Softmax", ["logits"], ["probs"])), "a Softmax makes them"),
    "Sigmoid": (
        ending(NODE("Sigmoid", ["logits"], ["sigmoid"]), NODE("Identity", ["sigmoid"], ["probs"])),
        "a Sigmoid makes them",
    ),
    "LogSoftmax": (ending(NODE("LogSoftmax", ["logits"], ["probs"])), "a LogSoftmax makes them"),
    "a softmax of its parts": (
        ending(
            NODE("Exp", ["logits"], ["exp"]),
            NODE("ReduceL1", ["exp"], ["sum"], axes=[1], keepdims=1),
            NODE("Div", ["exp", "sum"], ["probs"]),
        ),
        "they sum to 1",
    ),
    # As quantised graphs end in it: rounded, its values do not sum to 1.
    "in 8 bits": (
        ending(
            NODE("Softmax", ["logits"], ["soft"]),
            NODE("QuantizeLinear", ["soft", "step", "zero"], ["bytes"]),
            NODE("DequantizeLinear", ["bytes", "step", "zero"], ["probs"]),
            step=np.float32(1 / 100),
            zero=np.uint8(0),
        ),
        "a Softmax makes them",
    ),
    "no probabilities": (ending(NODE("Tanh", ["logits"], ["probs"])), None),
}


@pytest.mark.parametrize("case", PROBABILITIES)
def test_probabilities_as_the_embedding_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    change, why = PROBABILITIES[case]
    wrap(write_model(tmp_path / "m.onnx", change=change), "--output", "probs")
    said = capsys.readouterr().err
    if why is None:
        assert said == ""
    else:
        assert said.startswith("WARNING: probs holds probabilities of the classes")
        assert why in said


def test_an_output_of_probabilities_without_a_linear_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in SqueezeNet, whose class scores are averages of maps."""

    def change(graph: onnx.GraphProto) -> None:
        graph.node[-1].CopyFrom(NODE("Softmax", ["flat"], ["logits"]))

    bundle = wrap(write_model(tmp_path / "m.onnx", change=change), *MEAN_AND_STD)
    captured = capsys.readouterr()
    assert "input of the Softmax that makes the output logits" in captured.out
    assert captured.err == ""
    check_embeds(bundle, "flat")


def test_a_classifier_that_is_a_convolution(tmp_path: Path) -> None:
    """As in MobileNet: a 1 x 1 convolution of the pooled features."""

    def change(graph: onnx.GraphProto) -> None:
        del graph.node[-2:]
        set_constant(graph, "classifier", CLASSIFIER.T[:, :, None, None])
        graph.node.append(NODE("Conv", ["pooled", "classifier"], ["scores"]))
        graph.node.append(NODE("Flatten", ["scores"], ["logits"]))

    check_embeds(wrap(write_model(tmp_path / "m.onnx", change=change), *MEAN_AND_STD), "pooled")


def test_a_network_without_a_classifier_gives_its_output(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", change=output_only("flat", ["batch", 6]))
    check_embeds(wrap(model, *MEAN_AND_STD), "flat")


def test_the_caller_may_name_the_embedding(tmp_path: Path) -> None:
    """Such as the output itself, if the last layer is a projection and not a classifier."""
    check_embeds(wrap(write_model(tmp_path / "m.onnx"), "--output", "logits", *MEAN_AND_STD), "logits")


def test_of_several_outputs_the_embedding_is_taken(tmp_path: Path) -> None:
    """Other outputs are logits of that embedding, a feature map and integers."""

    def change(graph: onnx.GraphProto) -> None:
        graph.node.append(NODE("ArgMax", ["logits"], ["best"], axis=1, keepdims=0))
        info = helper.make_tensor_value_info
        graph.output.extend(
            [
                info("embeddings", TensorProto.FLOAT, ["batch", 6, 10, 10]),
                info("flat", TensorProto.FLOAT, ["batch", 6]),
                info("best", TensorProto.INT64, ["batch"]),
            ]
        )

    check_embeds(wrap(write_model(tmp_path / "m.onnx", change=change), *MEAN_AND_STD), "flat")


@pytest.mark.parametrize(("colour", "order"), [("rgb", 1), ("bgr", -1)])
def test_imagenets_normalisation_is_assumed_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], colour: str, order: int
) -> None:
    """Each mean belongs to its colour, in the network's order of channels."""
    bundle = wrap(write_model(tmp_path / "m.onnx"), "--colour", colour)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in IMAGENET)
    x = images(3, SIZE)
    channels = [0, 1, 2][::order]
    normalised = ((planes(x) / 255 - mean) / std)[:, channels]
    kernel = torch.from_numpy(KERNEL)
    expected = torch.nn.functional.conv2d(normalised, kernel).relu().mean(dim=(2, 3))
    torch.testing.assert_close(embed(bundle, x), unit(expected))
    printed = capsys.readouterr().out
    assert "ASSUMED" in printed
    assert "--normalisation" in printed
    assert "  crop:          1\n                 ASSUMED: the whole square; " in printed
    assert "(change it with --crop-fraction)" in printed
    wrap(write_model(tmp_path / "m.onnx"), "--crop-fraction", "0.875")
    assert "  crop:          0.875\n                 as given\n" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "mean", "std"), [("half", 0.5, 0.5), ("none", 0.0, 1.0), ("raw", 0.0, 1 / 255)])
def test_normalisations_by_name(tmp_path: Path, name: str, mean: float, std: float) -> None:
    bundle = wrap(write_model(tmp_path / "m.onnx"), "--normalisation", name)
    assert backbone_of(bundle)["mean"] == [mean] * 3
    assert backbone_of(bundle)["std"] == [std] * 3


def test_a_grey_model(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", colour="grey")
    bundle = wrap(model, "--mean", "0.4", "--std", "0.2")
    check_embeds(bundle, "flat", "grey")


INSIDE = {
    "Keras: x / 127.5 - 1": (
        insert_first(
            NODE("Mul", ["images", "gain"], ["scaled"]),
            NODE("Add", ["scaled", "shift"], ["normalised"]),
            gain=1 / 127.5,
            shift=-1,
        ),
        1 / 255,
    ),
    "mean of 0 to 255": (
        insert_first(NODE("Sub", ["images", "m"], ["normalised"]), m=np.full((3, 1, 1), 120.0)),
        1 / 255,
    ),
    "mean of 0 to 1": (insert_first(NODE("Sub", ["images", "m"], ["normalised"]), m=np.full((3, 1, 1), 0.45)), 1.0),
    "x / 255": (insert_first(NODE("Div", ["images", "m"], ["normalised"]), m=255.0), 1 / 255),
    "batch norm": (
        insert_first(
            NODE("BatchNormalization", ["images", "g", "b", "m", "v"], ["normalised"]),
            g=np.ones(3),
            b=np.zeros(3),
            m=np.full(3, 0.45),
            v=np.full(3, 0.05),
        ),
        1.0,
    ),
}


@pytest.mark.parametrize("case", INSIDE)
def test_a_graph_that_normalises_gets_plain_pixels(tmp_path: Path, case: str) -> None:
    change, std = INSIDE[case]
    backbone = backbone_of(wrap(write_model(tmp_path / "m.onnx", change=change)))
    assert (backbone["mean"], backbone["std"]) == ([0.0] * 3, [std] * 3)


def test_a_model_of_uint8_images_is_taken_as_it_is(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", dtype=TensorProto.UINT8, layout="nhwc")
    bundle = wrap(model)
    x = images(3, SIZE)
    features = torch.nn.functional.conv2d(planes(x), torch.from_numpy(KERNEL))
    expected = unit(features.relu().mean(dim=(2, 3)))
    torch.testing.assert_close(embed(bundle, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("exporter", ["reshape to (1, 6)", "reshape to (1, -1)", "reshape, allowzero", "flatten"])
def test_a_fixed_batch_of_one_becomes_dynamic(tmp_path: Path, exporter: str) -> None:
    """PyTorch's exporter writes a Reshape to (1, d) before the last layer."""

    def change(graph: onnx.GraphProto) -> None:
        if exporter == "flatten":
            return
        shape = np.array([1, 6 if "6" in exporter else -1])
        set_constant(graph, "shape", shape)
        attributes = {"allowzero": 1} if "allowzero" in exporter else {}
        graph.node[3].CopyFrom(NODE("Reshape", ["pooled", "shape"], ["flat"], **attributes))

    bundle = wrap(write_model(tmp_path / "m.onnx", batch=1, change=change), *MEAN_AND_STD)
    check_embeds(bundle, "flat")


def test_dynamic_sides_need_an_image_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "m.onnx", size="side")
    assert "--image-size" in refusal(capsys, model)
    bundle = wrap(model, "--image-size", "20")
    assert load_bundle(bundle).manifest.preprocessing.image_size == 20


def test_a_model_that_computes_in_float16(tmp_path: Path) -> None:
    """Its embeddings are rounded at every step, so the bundle's differ from its own by more than those in float32."""
    model = write_model(tmp_path / "m.onnx", dtype=TensorProto.FLOAT16)
    bundle, x = wrap(model, *MEAN_AND_STD, "--output", "logits"), images(8, SIZE)
    assert (embed(bundle, x) - unit(by_torch(x)["logits"])).abs().max() < 1e-2
