"""Backbones in 8-bit integers: calibration, export, verification and serving."""

import functools
import io
import json
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from comln_serve.bundle import load_bundle
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.imaging import Preprocessing
from tests.export.test_export import assert_same_answers, files
from tests.export.test_export import export as export_file
from tests.support.commands import Command
from tests.support.engines import Serve
from tests.support.graphs import KERNEL, NODE, NORMALISATION, SIZE, set_constant, write_model
from tests.support.messages import adapt_form, engine_of
from tests.support.tiny import checkpoint_of, tiny_config, tiny_model
from tests.trainer.backbones.test_frozen import EXPORT
from tests.trainer.backbones.test_timm_backbones import PIXELS, TINY
from training.bundles.int8 import load_calibration_images
from training.bundles.rounding import LARGEST
from training.checkpoint_names import BEST
from training.cli import main
from training.config import Config
from training.data import DataError

pytestmark = pytest.mark.slow


def save_run(folder: Path, config: Config) -> Path:
    """A run folder with an untrained model."""
    folder.mkdir()
    checkpoint_of(tiny_model(config)).save(folder / BEST)
    return folder


def save_photos(folder: Path, counts: dict[str, int], size: int = 40) -> Path:
    """Images of gradients with noise, `counts` of them in each folder, with different names."""
    rng = np.random.default_rng(0)
    slope = np.linspace(0, 1, size)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            ends = rng.uniform(0, 200, (2, 3))
            picture = ends[0] + slope[:, None, None] * (ends[1] - ends[0]) * slope[None, :, None]
            picture = picture + rng.integers(0, 56, (size, size, 3))
            Image.fromarray(picture.astype(np.uint8)).save(folder / name / f"{i}.png")
    return folder


def exporting(run: Path, to: Path, photos: Path, *more: str) -> list[str]:
    arguments = ["--int8", "--calibration", str(photos), "--calibration-images", "24", *more]
    return ["export", str(run), "--to", str(to), *EXPORT, *arguments]


def export(run: Path, to: Path, photos: Path, *more: str) -> int:
    return main(exporting(run, to, photos, *more))


def with_backbone(size: int, **backbone: Any) -> Config:
    return tiny_config("prototype", image_size=size, backbone={"kind": "conv4", **backbone})


NOTES = ("--notes", "For the tests.")
KINDS = ["conv4", "timm", "onnx", "old onnx", "grey onnx", "twice"]


def use_kernel_twice(graph: onnx.GraphProto) -> None:
    """Two convolutions with the same weights, which rounding leaves alone."""
    graph.node[0].output[0] = "first"
    graph.node.insert(1, helper.make_node("Conv", ["images", "kernel"], ["second"], strides=[1, 1], pads=[0, 0, 0, 0]))
    graph.node.insert(2, helper.make_node("Add", ["first", "second"], ["features"]))


def config_of(kind: str, folder: Path) -> Config:
    if kind == "conv4":
        return with_backbone(32, channels=32, normalise="l2")
    if kind == "timm":
        return with_backbone(64, kind="timm", architecture=TINY, normalise="l2", **PIXELS)
    keys: dict[str, Any] = {"kind": "onnx", "output": "flat", "normalise": "l2"} | NORMALISATION
    if kind == "grey onnx":
        keys |= {"colour": "grey", "mean": [0.5], "std": [0.25]}
    colour, opset = keys.get("colour", "rgb"), 11 if kind == "old onnx" else 17
    change = use_kernel_twice if kind == "twice" else None
    path = write_model(folder / "model.onnx", opset=opset, colour=colour, change=change)
    return with_backbone(SIZE, path=str(path), **keys)


class Exported:
    """A run of a kind, and its bundles in floats and in 8 bits: exports of half a minute, shared by the tests.

    Attributes:
        shown: what exporting in 8 bits printed.
    """

    def __init__(self, kind: str, folder: Path) -> None:
        folder.mkdir()
        self.run = save_run(folder / "run", config_of(kind, folder))
        self.photos = save_photos(folder / "photos", {"a": 16, "b": 16})
        self.floats, self.integers = folder / "floats", folder / "int8"
        assert main(["export", str(self.run), "--to", str(self.floats), *EXPORT]) == 0
        with redirect_stdout(io.StringIO()) as printed:
            assert export(self.run, self.integers, self.photos, *NOTES) == 0
        self.shown = printed.getvalue()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    folder = tmp_path_factory.mktemp("exported")
    return functools.cache(lambda kind: Exported(kind, folder / kind))


@pytest.mark.parametrize("kind", KINDS)
def test_any_run_can_be_exported_in_int8(kind: str, exported: Callable[[str], Exported], tmp_path: Path) -> None:
    made = exported(kind)
    floats, integers = (load_bundle(folder) for folder in (made.floats, made.integers))
    images = load_calibration_images(made.photos, 24, integers.manifest.preprocessing)
    expected, found = (OnnxBackbone(bundle, "cpu").embed(images).astype(np.float64) for bundle in (floats, integers))
    cosines = (expected * found).sum(1)
    cosines /= np.linalg.norm(expected, axis=1) * np.linalg.norm(found, axis=1)
    assert 0.97 < cosines.mean() < 1 - 1e-9
    # The printed cosine and that in the notes are the measured one.
    notes = integers.manifest.training.notes
    assert notes.startswith("For the tests.\n\nINT8")
    assert "24 images of photos" in notes
    assert notes in (made.integers / "README.md").read_text()
    for text in (made.shown, notes):
        figures = [float(figure) for figure in re.findall(r"\b[01]\.\d{4}\b", text)]
        assert figures == pytest.approx([cosines.mean(), cosines.min()], abs=6e-5)
    assert str(tmp_path.parent) not in (made.integers / "bundle.json").read_text()


def test_the_layers_between_pixels_and_pooling_are_in_eight_bits(
    exported: Callable[[str], Exported], tmp_path: Path
) -> None:
    """The file is a quarter as large; the same export gives the same graph."""
    made = exported("timm")
    assert export(made.run, tmp_path / "again", made.photos) == 0
    graphs = [(folder / "backbone.onnx").read_bytes() for folder in (made.integers, tmp_path / "again")]
    assert graphs[0] == graphs[1]
    assert str(tmp_path.parent).encode() not in graphs[0]
    graph = onnx.load_from_string(graphs[0]).graph
    makers = {output: node for node in graph.node for output in node.output}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    assert len(convolutions) > 20
    for node in convolutions:
        pixels, kernel = (makers[name] for name in node.input[:2])
        assert pixels.op_type == kernel.op_type == "DequantizeLinear"
        scales = numpy_helper.to_array(weights[kernel.input[1]])
        assert scales.shape == (weights[kernel.input[0]].dims[0],)  # one per channel
    count = sum(int(np.prod(t.dims)) for t in graph.initializer if t.name.endswith("_quantized"))
    assert len(graphs[0]) < 1.5 * count


def test_the_first_layers_stay_in_floats_where_asked(exported: Callable[[str], Exported], tmp_path: Path) -> None:
    count = 5
    made = exported("timm")
    assert export(made.run, tmp_path / "some", made.photos, "--float-layers", str(count)) == 0
    floats, whole, some = (load_bundle(folder) for folder in (made.floats, made.integers, tmp_path / "some"))
    assert f"but for its first {count} convolutions" in some.manifest.training.notes
    graph = onnx.load_from_string(some.backbone).graph
    makers = {output: node.op_type for node in graph.node for output in node.output}
    kernels = [makers.get(node.input[1]) for node in graph.node if node.op_type == "Conv"]
    assert kernels == [None] * count + ["DequantizeLinear"] * (len(kernels) - count)
    first = next(i for i, node in enumerate(graph.node) if node.op_type == "QuantizeLinear")
    assert [node.op_type for node in graph.node[:first]].count("Conv") == count
    images = load_calibration_images(made.photos, 24, some.manifest.preprocessing)
    expected, more, fewer = (OnnxBackbone(bundle, "cpu").embed(images) for bundle in (floats, whole, some))
    assert np.square(fewer - expected).sum() < np.square(more - expected).sum()


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_small_enough_for_the_fastest_instructions_of_every_cpu(
    kind: str, exported: Callable[[str], Exported]
) -> None:
    """Sessions without the server's option, which CPUs without VNNI need for larger weights, give the same."""
    made = exported(kind)
    bundle = load_bundle(made.integers)
    weights = [t for t in onnx.load_from_string(bundle.backbone).graph.initializer if t.name.endswith("_quantized")]
    weights = [numpy_helper.to_array(t) for t in weights if t.data_type == TensorProto.INT8]
    assert weights
    assert max(np.abs(values.astype(int)).max() for values in weights) == LARGEST
    images = load_calibration_images(made.photos, 24, bundle.manifest.preprocessing)
    plain = ort.InferenceSession(bundle.backbone, providers=["CPUExecutionProvider"])
    expected = plain.run(None, {plain.get_inputs()[0].name: images})[0]
    np.testing.assert_array_equal(OnnxBackbone(bundle, "cpu").embed(images), expected)


def test_an_image_and_its_mirror_image_share_their_weights(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", config_of("conv4", tmp_path))
    photos = save_photos(tmp_path / "photos", {"a": 16, "b": 16})
    mirror = ("--set", "backbone.mirror=true")
    assert main(["export", str(run), "--to", str(tmp_path / "floats"), *EXPORT, *mirror]) == 0
    assert export(run, tmp_path / "int8", photos, *mirror) == 0
    bundles = [load_bundle(tmp_path / name) for name in ("floats", "int8")]
    assert len(bundles[1].backbone) < 0.5 * len(bundles[0].backbone)
    images = load_calibration_images(photos, 24, bundles[0].manifest.preprocessing)
    floats, integers = (OnnxBackbone(bundle, "cpu").embed(images) for bundle in bundles)
    assert (floats * integers).sum(1).mean() > 0.97


def test_an_embedding_is_the_same_alone_and_in_a_batch(exported: Callable[[str], Exported]) -> None:
    """Bit-equal, with any number of threads."""
    made = exported("timm")
    bundle = load_bundle(made.integers)
    images = load_calibration_images(made.photos, 24, bundle.manifest.preprocessing)
    found: list[Any] = []
    for threads in (1, 2, 4):
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(bundle.backbone, options, providers=["CPUExecutionProvider"])
        for size in (1, 5, 24):
            batches = [images[i : i + size] for i in range(0, 24, size)]
            parts = [session.run(None, {"images": batch})[0] for batch in batches]
            found.append(np.concatenate(parts))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_a_classifier_of_it_is_exported_as_one_file(
    exported: Callable[[str], Exported], tmp_path: Path, serve: Serve
) -> None:
    (tmp_path / "inputs").mkdir()
    models = tmp_path / "models"
    models.mkdir()
    for kind in ("timm", "old onnx"):
        (models / kind.replace(" ", "-")).symlink_to(exported(kind).integers)
    client = serve(models_dir=models, default_model=None)
    for model in engine_of(client).models:
        adapted = client.post("/adapt", **adapt_form(model=model))
        assert adapted.status_code == 201, adapted.text
        assert_same_answers(client, adapted.json()["id"], files(tmp_path / "inputs"))
        graph = onnx.load_from_string(export_file(client, adapted.json()["id"])).graph
        assert TensorProto.INT8 in {tensor.data_type for tensor in graph.initializer}


def test_a_graph_that_loses_too_much_in_eight_bits_is_refused(tmp_path: Path, comln_train: Command) -> None:
    """One feature is a million times larger than the others but hardly changes the embedding."""

    def change(graph: onnx.GraphProto) -> None:
        enlarge, shrink = (np.array([x, 1, 1, 1, 1, 1], dtype=np.float32).reshape(6, 1, 1) for x in (1e6, 1e-9))
        set_constant(graph, "kernel", enlarge[..., None] * KERNEL)
        set_constant(graph, "shrink", shrink)
        graph.node[1].output[0] = "raw"
        graph.node.insert(2, helper.make_node("Mul", ["raw", "shrink"], ["embeddings"]))

    path = write_model(tmp_path / "model.onnx", change=change)
    config = with_backbone(SIZE, kind="onnx", path=str(path), output="flat", **NORMALISATION)
    run = save_run(tmp_path / "run", config)
    photos = save_photos(tmp_path / "photos", {"a": 24})
    message = comln_train.refused(*exporting(run, tmp_path / "int8", photos))
    assert "0.9 is needed" in message
    assert "float32" in message
    assert not (tmp_path / "int8").exists()


def test_more_float_layers_than_there_are_is_refused(tmp_path: Path, comln_train: Command) -> None:
    run, photos = save_run(tmp_path / "run", config_of("conv4", tmp_path)), save_photos(tmp_path / "photos", {"a": 2})
    said = comln_train.refused(*exporting(run, tmp_path / "int8", photos, "--float-layers", "4"))
    assert "after the first 4 of them" in said


def test_a_graph_without_products_is_refused(tmp_path: Path, comln_train: Command) -> None:
    def change(graph: onnx.GraphProto) -> None:
        del graph.node[:]
        graph.node.append(NODE("GlobalAveragePool", ["images"], ["pooled"]))
        graph.node.append(NODE("Flatten", ["pooled"], ["logits"]))

    path = write_model(tmp_path / "model.onnx", change=change)
    run = save_run(tmp_path / "run", with_backbone(SIZE, kind="onnx", path=str(path), **NORMALISATION))
    photos = save_photos(tmp_path / "photos", {"a": 2})
    assert "float32" in comln_train.refused(*exporting(run, tmp_path / "int8", photos))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--int8"], "--calibration"),
        (["--calibration", "."], "--int8"),
        (["--int8", "--calibration", "gone"], "gone: no such folder"),
        (["--int8", "--calibration", "run"], "no image below it"),
        (["--int8", "--calibration", "run", "--calibration-images", "0"], "1 or more, got 0"),
        (["--int8", "--calibration", "run", "--float-layers", "-1"], "0 or more"),
        (["--float-layers", "2"], "goes with --int8; got 2"),
    ],
)
def test_mistakes_of_the_command_line(
    arguments: list[str], message: str, tmp_path: Path, comln_train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_run(tmp_path / "run", tiny_config())
    monkeypatch.chdir(tmp_path)
    assert message in comln_train.refused("export", "run", "--to", "int8", *EXPORT, *arguments)


def test_images_are_drawn_evenly_from_all_folders(tmp_path: Path) -> None:
    counts = {"a": 30, "b/c": 30, "b/d": 2, "e": 30, ".hidden": 9}
    photos = save_photos(tmp_path / "photos", counts, size=16)
    (photos / "a" / "notes.txt").write_text("no image")
    (photos / "a" / "._0.png").write_text("no image")
    policy = Preprocessing(image_size=16)
    folder_of = {
        np.asarray(Image.open(path)).tobytes(): str(path.relative_to(photos).parent)
        for path in photos.rglob("[0-9]*.png")
    }
    found = load_calibration_images(photos, 14, policy)
    drawn = [folder_of[image.tobytes()] for image in found]
    assert {name: drawn.count(name) for name in set(drawn)} == {"a": 4, "b/c": 4, "b/d": 2, "e": 4}
    assert len({image.tobytes() for image in found}) == 14
    np.testing.assert_array_equal(load_calibration_images(photos, 14, policy), found)
    assert len(load_calibration_images(photos, 1000, policy)) == 92
    # In subfolders or not.
    assert len(load_calibration_images(photos / "b" / "c", 5, policy)) == 5


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    photos = save_photos(tmp_path / "photos", {"a": 1})
    (photos / "a" / "damaged.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"a/damaged\.jpg"):
        load_calibration_images(photos, 5, Preprocessing(image_size=16))


def test_float32_is_the_default(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", tiny_config())
    assert main(["export", str(run), "--to", str(tmp_path / "bundle"), *EXPORT]) == 0
    manifest = json.loads((tmp_path / "bundle" / "bundle.json").read_text())
    assert "INT8" not in manifest["training"]["notes"]
    graph = onnx.load(tmp_path / "bundle" / "backbone.onnx").graph
    assert not any(node.op_type == "DequantizeLinear" for node in graph.node)
