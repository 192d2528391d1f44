"""`comln-train wrap`: a bundle that can be served is made from an ONNX model without training."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import yaml
from onnx import TensorProto, helper, numpy_helper

from comln_serve.bundle import BundleError, load_bundle
from comln_serve.configuration.settings import Settings
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.engine.engine import NewClassifier
from tests.support.engines import MakeEngine, predict
from tests.support.image_files import colour_support, image_bytes
from tests.support.paths import REPOSITORY
from tests.trainer.backbones.test_backbones import images
from tests.trainer.backbones.test_onnx_backbones import CLASSIFIER, KERNEL, SIZE, by_torch, write_model
from training.bundles.universal_head import UNIVERSAL_HEAD, universal_head_config
from training.cli import main
from training.config import Config, HeadConfig
from training.model import MetaModel

Change = Callable[[onnx.GraphProto], None]
MEAN_AND_STD = ("--mean", "0.4,0.5,0.6", "--std", "0.2,0.3,0.4")  # those of `by_torch`
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def wrap(model: Path, *flags: str) -> Path:
    """The bundle of a model that must be accepted by `wrap`."""
    bundle = model.parent / "models" / "mine"
    assert main(["wrap", str(model), "--to", str(bundle), "--replace", *flags]) == 0
    return bundle


def refusal(capsys: pytest.CaptureFixture[str], model: Path, *flags: str) -> str:
    """The error message for a model that must be refused; no bundle is written."""
    bundle = model.parent / "models" / "mine"
    assert main(["wrap", str(model), "--to", str(bundle), *flags]) == 2
    assert not bundle.exists()
    return capsys.readouterr().err


def embed(bundle: Path, x: torch.Tensor) -> torch.Tensor:
    """The embeddings that the server computes."""
    return torch.from_numpy(OnnxBackbone(load_bundle(bundle), "cpu").embed(x.numpy()))


def unit(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(x, dim=1)


def backbone_of(bundle: Path) -> dict[str, Any]:
    tree: dict[str, Any] = load_bundle(bundle).manifest.training.config["backbone"]
    return tree


def planes(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 3, 1, 2).float()


def output_only(name: str, dims: list[Any]) -> Change:
    """Make an inner tensor the graph's one output."""

    def change(graph: onnx.GraphProto) -> None:
        del graph.output[:]
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))

    return change


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
    graph.initializer[1].CopyFrom(numpy_helper.from_array(CLASSIFIER.T.copy(), "classifier"))
    graph.initializer.append(numpy_helper.from_array(np.ones(4, dtype=np.float32), "bias"))
    graph.node.extend(
        [
            helper.make_node("Gemm", ["flat", "classifier", "bias"], ["scores"], transB=1),
            helper.make_node("Softmax", ["scores"], ["logits"], axis=1),
        ]
    )


def with_bias(graph: onnx.GraphProto) -> None:
    graph.node[-1].output[0] = "products"
    graph.initializer.append(numpy_helper.from_array(np.ones(4, dtype=np.float32), "bias"))
    graph.node.append(helper.make_node("Add", ["bias", "products"], ["logits"]))


@pytest.mark.parametrize("change", [None, with_softmax, with_bias])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_embedding_of_a_classifier_is_the_input_of_its_last_layer(
    tmp_path: Path, layout: str, change: Change | None
) -> None:
    bundle = wrap(write_model(tmp_path / "m.onnx", layout=layout, change=change), *MEAN_AND_STD)
    x = images(3, SIZE)
    torch.testing.assert_close(embed(bundle, x), unit(by_torch(x)["flat"]))
    assert backbone_of(bundle)["layout"] == layout


def as_probabilities(*operators: str) -> Change:
    """Operators that make probabilities of the class scores, or nearly; the last makes "probs", the one output."""

    def change(graph: onnx.GraphProto) -> None:
        names = ["logits", *(f"inner_{number}" for number in range(1, len(operators))), "probs"]
        for position, operator in enumerate(operators):
            read = [names[position]] * (2 if operator == "Div" else 1)
            graph.node.append(helper.make_node(operator, read, [names[position + 1]]))
        output_only("probs", ["batch", 4])(graph)

    return change


def by_sums(graph: onnx.GraphProto) -> None:
    """A softmax of its parts."""
    graph.node.extend(
        [
            helper.make_node("Exp", ["logits"], ["exp"]),
            helper.make_node("ReduceL1", ["exp"], ["sum"], axes=[1], keepdims=1),
            helper.make_node("Div", ["exp", "sum"], ["probs"]),
        ]
    )
    output_only("probs", ["batch", 4])(graph)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (as_probabilities("Softmax"), "a Softmax makes them"),
        (as_probabilities("Sigmoid", "Identity"), "a Sigmoid makes them"),
        (as_probabilities("LogSoftmax"), "a LogSoftmax makes them"),
        (by_sums, "they sum to 1"),
        (as_probabilities("Tanh"), None),
    ],
)
def test_probabilities_as_the_embedding_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Change, why: str | None
) -> None:
    model = write_model(tmp_path / "m.onnx", change=change)
    wrap(model, "--output", "probs")
    said = capsys.readouterr().err
    if why is None:
        assert said == ""
    else:
        assert said.startswith("WARNING: probs holds probabilities of the classes")
        assert why in said


def test_an_output_of_probabilities_without_a_linear_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in SqueezeNet, whose class scores are averages of maps."""

    def change(graph: onnx.GraphProto) -> None:
        graph.node[-1].CopyFrom(helper.make_node("Softmax", ["flat"], ["logits"]))

    bundle = wrap(write_model(tmp_path / "m.onnx", change=change), *MEAN_AND_STD)
    captured = capsys.readouterr()
    assert "input of the Softmax that makes the output logits" in captured.out
    assert captured.err == ""
    x = images(3, SIZE)
    torch.testing.assert_close(embed(bundle, x), unit(by_torch(x)["flat"]))


@pytest.mark.parametrize("ring", [["images"], ["a", "b"]], ids=["the input onto itself", "two nodes"])
def test_a_graph_that_goes_round_in_a_circle_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ring: list[str]
) -> None:
    def change(graph: onnx.GraphProto) -> None:
        for read, made in zip(ring, ring[1:] + ring[:1], strict=True):
            graph.node.append(helper.make_node("Identity", [read], [made]))
        output_only(ring[0], ["batch", 4])(graph)

    assert "m.onnx" in refusal(capsys, write_model(tmp_path / "m.onnx", change=change))


def test_a_classifier_that_is_a_convolution(tmp_path: Path) -> None:
    """As in MobileNet: a 1 x 1 convolution of the pooled features."""

    def change(graph: onnx.GraphProto) -> None:
        del graph.node[-2:]
        weight = np.ascontiguousarray(CLASSIFIER.T)[:, :, None, None]
        graph.initializer[1].CopyFrom(numpy_helper.from_array(weight, "classifier"))
        graph.node.extend(
            [
                helper.make_node("Conv", ["pooled", "classifier"], ["scores"]),
                helper.make_node("Flatten", ["scores"], ["logits"]),
            ]
        )

    bundle = wrap(write_model(tmp_path / "m.onnx", change=change), *MEAN_AND_STD)
    x = images(3, SIZE)
    torch.testing.assert_close(embed(bundle, x), unit(by_torch(x)["pooled"]))


def test_a_network_without_a_classifier_gives_its_output(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", change=output_only("flat", ["batch", 6]))
    x = images(3, SIZE)
    expected = unit(by_torch(x)["flat"])
    torch.testing.assert_close(embed(wrap(model, *MEAN_AND_STD), x), expected)


def test_the_caller_may_name_the_embedding(tmp_path: Path) -> None:
    """Such as the output itself, if the last layer is a projection and not a classifier."""
    model = write_model(tmp_path / "m.onnx")
    x = images(3, SIZE)
    expected = unit(by_torch(x)["logits"])
    found = embed(wrap(model, "--output", "logits", *MEAN_AND_STD), x)
    torch.testing.assert_close(found, expected)


def test_of_several_outputs_the_embedding_is_taken(tmp_path: Path) -> None:
    """Other outputs are logits of that embedding, a feature map and integers."""

    def change(graph: onnx.GraphProto) -> None:
        graph.node.append(helper.make_node("ArgMax", ["logits"], ["best"], axis=1, keepdims=0))
        info = helper.make_tensor_value_info
        graph.output.extend(
            [
                info("embeddings", TensorProto.FLOAT, ["batch", 6, 10, 10]),
                info("flat", TensorProto.FLOAT, ["batch", 6]),
                info("best", TensorProto.INT64, ["batch"]),
            ]
        )

    bundle = wrap(write_model(tmp_path / "m.onnx", change=change), *MEAN_AND_STD)
    x = images(3, SIZE)
    torch.testing.assert_close(embed(bundle, x), unit(by_torch(x)["flat"]))


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


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--mean", "0.5", "0.5", "0.5"), "unrecognized arguments: 0.5 0.5; the numbers of one option are separated"),
        (("--mean", "-0.5,0,0"), "expected one argument; to give a negative value, write --mean=-VALUE"),
        (("--nothing",), "unrecognized arguments: --nothing\n"),
    ],
)
def test_numbers_that_are_given_in_another_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit):
        main(["wrap", "m.onnx", "--to", str(tmp_path / "mine"), *flags])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("name", "mean", "std"), [("half", 0.5, 0.5), ("none", 0.0, 1.0), ("raw", 0.0, 1 / 255)])
def test_normalisations_by_name(tmp_path: Path, name: str, mean: float, std: float) -> None:
    bundle = wrap(write_model(tmp_path / "m.onnx"), "--normalisation", name)
    assert backbone_of(bundle)["mean"] == [mean] * 3
    assert backbone_of(bundle)["std"] == [std] * 3


def test_a_grey_model(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", colour="grey")
    bundle = wrap(model, "--mean", "0.4", "--std", "0.2")
    x = images(3, SIZE)
    torch.testing.assert_close(embed(bundle, x), unit(by_torch(x, "grey")["flat"]))


NODE = helper.make_node
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
        graph.initializer.append(numpy_helper.from_array(shape, "shape"))
        attributes = {"allowzero": 1} if "allowzero" in exporter else {}
        reshape = helper.make_node("Reshape", ["pooled", "shape"], ["flat"], **attributes)
        graph.node[3].CopyFrom(reshape)

    bundle = wrap(write_model(tmp_path / "m.onnx", batch=1, change=change), *MEAN_AND_STD)
    x = images(5, SIZE)
    torch.testing.assert_close(embed(bundle, x), unit(by_torch(x)["flat"]))


def test_dynamic_sides_need_an_image_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "m.onnx", size="side")
    assert "--image-size" in refusal(capsys, model)
    bundle = wrap(model, "--image-size", "20")
    assert load_bundle(bundle).manifest.preprocessing.image_size == 20


def test_serving_a_wrapped_model(tmp_path: Path, make_engine: MakeEngine) -> None:
    """Classes of colours, classified by a convolution with random weights; T is chosen for the task."""
    bundle = wrap(write_model(tmp_path / "m.onnx"), "--normalisation", "half")
    settings = Settings(
        models_dir=bundle.parent,
        database_url=f"sqlite:///{tmp_path / 'classifiers.db'}",
        provider="cpu",
        default_model="mine",
    )
    engine = make_engine(settings)
    engine.warm()
    manifest = load_bundle(bundle).manifest
    assert manifest.head.horizon_rule == "auto"
    assert load_bundle(bundle).head == UNIVERSAL_HEAD
    classifier = engine.adapt(colour_support(4), NewClassifier(name="colours")).classifier
    assert classifier.horizon > 0
    queries = {"red": (220, 30, 30), "green": (30, 220, 30), "blue": (30, 30, 220)}
    queries_of = [image_bytes(colour, seed=9) for colour in queries.values()]
    predicted = predict(engine, queries_of, "colours")
    labels = predicted.classifier.labels
    assert [labels[row.argmax()] for row in predicted.probabilities] == list(queries)


def write_photos(folder: Path) -> Path:
    for label, colour in {"red": (220, 30, 30), "green": (30, 220, 30)}.items():
        (folder / label).mkdir(parents=True)
        for seed in range(6):
            (folder / label / f"{seed}.png").write_bytes(image_bytes(colour, seed=seed))
    return folder


def test_a_wrapped_bundle_is_measured_as_any_other(tmp_path: Path) -> None:
    bundle, photos = wrap(write_model(tmp_path / "m.onnx")), write_photos(tmp_path / "photos")
    measuring = ["--data", str(photos), "--split", "all", "--task", "2x2", "--queries", "2", "--episodes", "5"]
    assert main(["evaluate", str(bundle), *measuring, "--record"]) == 0
    (accuracy,) = load_bundle(bundle).manifest.accuracy
    assert accuracy.mean > 0.9


def test_the_card_says_that_nothing_was_trained(tmp_path: Path) -> None:
    bundle = wrap(write_model(tmp_path / "m.onnx"), "--licence", "MIT")
    training = load_bundle(bundle).manifest.training
    assert (training.updates, training.seconds) == (0, 0)
    assert Config.model_validate(training.config).updates == 0
    assert str(tmp_path) not in json.dumps(training.model_dump(mode="json"))
    card = (bundle / "README.md").read_text(encoding="utf-8")
    assert "Not trained" in card
    assert "MIT" in card


@pytest.mark.parametrize(
    ("flags", "shares"),
    [
        ((), (1.0, 0.65)),
        (("--crop-fraction", "0.875"), (0.875, 1.0, 0.65)),
        (("--support-views", "0.8,0.5"), (1.0, 0.8, 0.5)),
        (("--support-views", "none", "--crop-fraction", "0.875"), (0.875,)),
        (("--resize", "pad"), (1.0,)),
    ],
)
def test_support_images_have_views(
    tmp_path: Path, make_engine: MakeEngine, settings: Settings, flags: tuple[str, ...], shares: tuple[float, ...]
) -> None:
    bundle = wrap(write_model(tmp_path / "m.onnx"), *flags)
    assert load_bundle(bundle).manifest.preprocessing.shares == shares
    engine = make_engine(settings.model_copy(update={"models_dir": bundle.parent, "default_model": None}))
    made = engine.adapt(colour_support(2)).classifier
    (_, support), width = engine.classifiers.of().support(made.id), made.W.shape[1]
    assert support.embeddings.shape == (len(colour_support(2)), len(shares) * width)


@pytest.mark.parametrize("flags", [(), ("--crop-fraction", "0.875"), ("--support-views", "none")])
def test_the_command_of_the_card_makes_the_same_bundle(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """The command contains everything that was found, assumed or given."""
    model = write_model(tmp_path / "m.onnx")
    first = load_bundle(wrap(model, *flags))
    command = first.manifest.training.command.split()
    assert command[:5] == ["comln-train", "wrap", "m.onnx", "--to", "BUNDLE"]
    assert load_bundle(wrap(model, *command[5:])).embedder_sha256 == first.embedder_sha256


def test_a_bundle_is_replaced_only_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "m.onnx")
    bundle = wrap(model)
    before = (bundle / "bundle.json").read_bytes()
    again = ["wrap", str(model), "--to", str(bundle), "--interpolation", "bicubic"]
    assert main(again) == 2
    assert "is a bundle already: --replace" in capsys.readouterr().err
    assert (bundle / "bundle.json").read_bytes() == before
    assert main([*again, "--replace"]) == 0
    assert (bundle / "bundle.json").read_bytes() != before


def test_fit_starts_from_the_head_that_wrap_writes() -> None:
    recipe = yaml.safe_load((REPOSITORY / "training/recipes/frozen-onnx.yaml").read_text())
    assert HeadConfig.model_validate(recipe["head"]) == universal_head_config()


def test_the_recipes_head_equals_the_bundles(tmp_path: Path) -> None:
    bundle = wrap(write_model(tmp_path / "m.onnx"))
    tree = load_bundle(bundle).manifest.training.config
    tree["backbone"]["path"] = str(tmp_path / "m.onnx")
    start, head = MetaModel(Config.model_validate(tree)).head(), UNIVERSAL_HEAD
    assert start.horizon_for(12, 3, 1.0) == pytest.approx(head.horizon_for(12, 3, 1.0))
    assert start.alpha == pytest.approx(head.alpha)
    assert start.similarity == pytest.approx(head.similarity)
    assert start.shot_offset == pytest.approx(head.shot_offset)
    assert start.whitening == pytest.approx(head.whitening)


def test_fit_refuses_a_recipe_of_no_updates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = load_bundle(wrap(write_model(tmp_path / "m.onnx"))).manifest.training.config
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    photos = tmp_path / "photos"
    for split in ("train", "val"):
        write_photos(photos / split)
    fit = ["fit", str(tmp_path / "recipe.yaml"), "--data", str(photos), "--out", str(tmp_path / "o")]
    assert main(fit) == 2
    assert "updates is 0" in capsys.readouterr().err


def no_floats(graph: onnx.GraphProto) -> None:
    graph.node.append(helper.make_node("ArgMax", ["logits"], ["best"], axis=1, keepdims=0))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("best", TensorProto.INT64, ["batch"]))


def no_signal(graph: onnx.GraphProto) -> None:
    graph.initializer[0].CopyFrom(numpy_helper.from_array(0 * KERNEL, "kernel"))


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
    "integers as the embedding": ({"change": no_floats}, [], "--output"),
    "the same for every image": ({"change": no_signal}, ["--output", "flat"], "--output"),
}


def test_a_model_that_computes_in_float16(tmp_path: Path) -> None:
    """Its embeddings are rounded at every step, so the bundle's differ from its own by more than those in float32."""
    model = write_model(tmp_path / "m.onnx", dtype=TensorProto.FLOAT16)
    bundle, x = wrap(model, *MEAN_AND_STD, "--output", "logits"), images(8, SIZE)
    assert (embed(bundle, x) - unit(by_torch(x)["logits"])).abs().max() < 1e-2


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


def test_only_a_bundle_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "m.onnx")
    wrap(model)
    assert backbone_of(wrap(model, "--colour", "bgr"))["colour"] == "bgr"
    taken = tmp_path / "photos"
    taken.mkdir()
    (taken / "mine.jpg").write_bytes(b"a photo")
    assert main(["wrap", str(model), "--to", str(taken)]) == 2
    assert "--to" in capsys.readouterr().err
    assert [path.name for path in taken.iterdir()] == ["mine.jpg"]
    with pytest.raises(BundleError):
        load_bundle(taken)


def test_the_command_says_how_to_serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = wrap(write_model(tmp_path / "m.onnx"))
    printed = capsys.readouterr().out
    assert f"comln-serve --models-dir {bundle.parent} --default-model mine" in printed
    assert "curl" in printed
