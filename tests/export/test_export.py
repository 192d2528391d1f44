"""Exported classifiers answer as the server does, without any of its code."""

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import safetensors.numpy
from fastapi.testclient import TestClient
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from scipy.special import softmax

from comln_serve.api.routes.export import MOST_EXPORTS
from comln_serve.bundle import Bundle, find_bundles, load_bundle
from comln_serve.bundle.calibration import TaskLaw
from comln_serve.configuration.settings import Settings
from comln_serve.domain.classifier import Classifier
from comln_serve.engine.bundles import models_folder
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.export.expressions import Nodes
from comln_serve.export.head_file import head_file
from comln_serve.export.onnx_file import onnx_file
from comln_serve.export.resampling import LEAST_OPSET, resample
from comln_serve.imaging import Preprocessing, pixel_views
from examples.run_exported import decode
from tests.support.bundles import calibration, edit_manifest
from tests.support.documents import blocks, document
from tests.support.engines import MakeEngine, Serve
from tests.support.image_files import colour_support
from tests.support.messages import adapt_form, check_error, engine_of, predict_form
from tests.support.paths import REPOSITORY

# Of probabilities: they are float32 in the file, and JSON of float64 in the server's answers.
TOLERANCE = 1e-6
POLICIES = [
    (resize, interpolation)
    for resize in ("crop", "pad", "stretch")
    for interpolation in ("bilinear", "bicubic", "lanczos")
]
LABELS = ["red", "green", "blue"]


def session_of(model: bytes) -> Any:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"])


def picture(rng: np.random.Generator, height: int, width: int, mode: str = "RGB") -> Image.Image:
    """Noise over a gradient."""
    depth = len(Image.new(mode, (1, 1)).getbands())
    slope = np.linspace(0, 200, width)[None, :, None] * np.linspace(0, 1, height)[:, None, None]
    noise = rng.integers(0, 56, (height, width, depth))
    return Image.fromarray((slope + noise).astype(np.uint8).squeeze(), mode=None).convert(mode)


def files(folder: Path) -> list[Path]:
    """JPEG and PNG files of many sizes and kinds; those of 1 and 2 pixels included."""
    rng = np.random.default_rng(0)
    sizes = [(1, 1), (2, 1), (1, 7), (40, 31), (31, 40), (84, 84), (333, 97), (98, 333), (600, 801)]
    made: list[Path] = []
    for height, width in sizes:
        for fmt in ("jpg", "png"):
            made.append(folder / f"{height}x{width}.{fmt}")
            picture(rng, height, width).save(made[-1])
    exif = Image.Exif()
    exif[0x0112] = 6
    made.append(folder / "turned.jpg")
    picture(rng, 50, 90).save(made[-1], exif=exif)
    for mode in ("RGBA", "LA", "L"):
        made.append(folder / f"{mode}.png")
        picture(rng, 45, 60, mode).save(made[-1])
    made.append(folder / "palette.png")
    picture(rng, 45, 60).quantize(8).save(made[-1], transparency=3)
    made.append(folder / "16bits.png")
    Image.fromarray(rng.integers(0, 65536, (45, 60), dtype=np.uint16)).save(made[-1])
    made.append(folder / "cmyk.jpg")
    picture(rng, 45, 60).convert("CMYK").save(made[-1])
    return made


def large(folder: Path) -> list[Path]:
    """JPEG files around the size from which the photo bundle has them decoded at half of it."""
    rng, paths = np.random.default_rng(1), [folder / f"{side}.jpg" for side in (950, 1100)]
    for path in paths:
        picture(rng, int(path.stem), 1200).save(path)
    return paths


def export(client: TestClient, classifier: str, kind: str = "onnx") -> bytes:
    answer = client.get(f"/classifiers/{classifier}/export", params={"format": kind})
    assert answer.status_code == 200, answer.text
    return answer.content


def assert_same_answers(client: TestClient, classifier: str, paths: list[Path]) -> None:
    session = session_of(export(client, classifier))
    about = session.get_modelmeta().custom_metadata_map
    labels = json.loads(about["labels"])
    images = [("images", path.read_bytes()) for path in paths]
    answer = client.post(
        "/predict", data={"classifier": classifier, "top_k": len(labels), "unknown": "true"}, files=images
    )
    assert answer.status_code == 200, answer.text
    for path, prediction in zip(paths, answer.json()["predictions"], strict=True):
        pixels = decode(path, json.loads(about["preprocessing"]))
        (found,), (alike,) = session.run(["probabilities", "similarities"], {"images": pixels[None]})
        expected = {item["label"]: item["probability"] for item in prediction["top"]}
        assert found.tolist() == pytest.approx([expected[x] for x in labels], abs=TOLERANCE), path
        assert alike.shape == (len(labels),)
        assert alike.max() == pytest.approx(prediction["similarity"], abs=TOLERANCE), path
    threshold = answer.json()["unknown_threshold"]
    assert about.get("unknown_threshold") == (None if threshold is None else repr(threshold))


@pytest.mark.parametrize("opset", [LEAST_OPSET, 13, 18, 22])
@pytest.mark.parametrize(
    ("resize", "interpolation", "share"),
    [(*policy, 1.0) for policy in POLICIES] + [("crop", "bilinear", 0.875), ("crop", "bicubic", 0.9)],
)
def test_pixels_are_pillows(resize: Any, interpolation: Any, share: float, opset: int) -> None:
    """Bit for bit, at random sizes and at those where the policy has corners."""
    rng = np.random.default_rng(opset)
    corners = [(1, 1), (1, 300), (300, 1), (23, 23), (22, 23), (23, 22), (24, 23), (45, 46)]
    sizes = [*corners, *np.exp(rng.uniform(0, np.log(400), (25, 2))).astype(int).tolist()]
    policy = Preprocessing(
        image_size=23, resize=resize, crop_fraction=share, interpolation=interpolation, background=(10, 200, 30)
    )
    nodes = Nodes("n/")
    result = resample(nodes, nodes.tensor("images"), policy)
    graph = helper.make_graph(
        nodes.nodes,
        "resampling",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["b", "h", "w", 3])],
        [helper.make_tensor_value_info(result.name, TensorProto.UINT8, ["b", 23, 23, 3])],
        nodes.constants,
    )
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=6 if opset < 15 else 10)
    onnx.checker.check_model(model, full_check=True)
    session = session_of(model.SerializeToString())
    for height, width in sizes:
        images = rng.integers(0, 256, (2, height, width, 3), dtype=np.uint8)
        (found,) = session.run(None, {"images": images})
        expected = np.stack([pixel_views(image, policy)[0] for image in images])
        assert np.array_equal(found, expected), (height, width)


@pytest.fixture(scope="module")
def policy_models(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle `tiny` with every preprocessing policy."""
    root = tmp_path_factory.mktemp("policies")
    for resize, interpolation in POLICIES:
        policy = {"resize": resize, "interpolation": interpolation, "background": [9, 99, 199]}
        folder = shutil.copytree(models_dir / "tiny", root / f"{resize}-{interpolation}")
        edit_manifest(folder, lambda content, policy=policy: content["preprocessing"].update(policy))
    return root


@pytest.mark.slow
def test_every_policy_answers_as_predict(policy_models: Path, tmp_path: Path, serve: Serve) -> None:
    paths = files(tmp_path)
    client = serve(models_dir=policy_models, default_model=None)
    for model in engine_of(client).models:
        adapted = client.post("/adapt", **adapt_form(model=model))
        assert adapted.status_code == 201, adapted.text
        assert_same_answers(client, adapted.json()["id"], paths)


@pytest.mark.slow
@pytest.mark.parametrize("model", [path.name for path in find_bundles(REPOSITORY / "models")])
def test_shipped_bundles_answer_as_predict(model: str, tmp_path: Path, serve: Serve) -> None:
    drawings = REPOSITORY / "examples" / "omniglot"
    classes = ["keble-08", "oriya-25", "sylheti-06", "syriac-serto-01", "tengwar-02"]
    client = serve(models_dir=REPOSITORY / "models", default_model=model)
    support = [(path.read_bytes(), name) for name in classes for path in (drawings / name / "support").iterdir()]
    client.post("/adapt", **adapt_form(support, name="letters")).raise_for_status()
    queries = [path for name in classes for path in (drawings / name / "query").iterdir()]
    assert_same_answers(client, "letters", [*queries, *files(tmp_path), *large(tmp_path)])
    (tmp_path / "letters.onnx").write_bytes(export(client, "letters"))
    # The example, as its docstring says, in a process of its own.
    query = drawings / "oriya-25" / "query" / "1.png"
    command = [sys.executable, "examples/run_exported.py", tmp_path / "letters.onnx", query]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{query}: ")
    if model == "omniglot-conv4":
        assert ": oriya-25 (" in done.stdout
    # As with `| head`.
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, cwd=REPOSITORY, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["photos-efficientnet-lite0", "miniimagenet-conv4"])
def test_the_documented_way_from_a_photo_to_probabilities(
    model: str, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block of docs/export.md computes what `/predict` answers, from a file of the head alone."""
    (block,) = blocks(document("export.md"), "python")
    groceries = sorted(path for path in (REPOSITORY / "examples" / "groceries").iterdir() if path.is_dir())
    client = serve(models_dir=REPOSITORY / "models", default_model=model)
    (tmp_path / "models").symlink_to(REPOSITORY / "models")
    monkeypatch.chdir(tmp_path)
    queries = [path for folder in groceries for path in sorted((folder / "query").iterdir())]
    support = [(path.read_bytes(), folder.name) for folder in groceries for path in (folder / "support").iterdir()]
    client.post("/adapt", **adapt_form(support, name="letters")).raise_for_status()
    (tmp_path / "letters.safetensors").write_bytes(export(client, "letters", "safetensors"))
    opaque = [path for path in files(tmp_path) if path.stem not in {"RGBA", "LA", "palette", "16bits"}]
    for path in [*queries, *opaque, *large(tmp_path)]:
        (tmp_path / "photo.jpg").write_bytes(path.read_bytes())
        asked = predict_form(path.read_bytes(), classifier="letters", top_k=len(groceries))
        (prediction,) = client.post("/predict", **asked).json()["predictions"]
        expected = {item["label"]: item["probability"] for item in prediction["top"]}
        scope: dict[str, Any] = {}
        exec(block, scope)
        found = dict(zip(json.loads(scope["about"]["labels"]), scope["probabilities"].tolist(), strict=True))
        assert found == pytest.approx(expected, abs=1e-5), path


@pytest.fixture
def named(client: TestClient) -> str:
    """A classifier of three classes, of the model `tiny`."""
    client.post("/adapt", **adapt_form(colour_support(), name="colours")).raise_for_status()
    return "colours"


def test_the_onnx_file_is_valid_and_standard(client: TestClient, named: str) -> None:
    model = onnx.load_from_string(export(client, named))
    onnx.checker.check_model(model, full_check=True)
    assert {entry.domain for entry in model.opset_import} == {""}
    assert not model.functions
    assert [value.name for value in model.graph.input] == ["images"]
    assert [value.name for value in model.graph.output] == ["probabilities", "similarities"]


def test_a_batch_is_its_images(client: TestClient, named: str) -> None:
    session = session_of(export(client, named))
    images = np.random.default_rng(0).integers(0, 256, (5, 33, 47, 3), dtype=np.uint8)
    together, _ = session.run(None, {"images": images})
    alone = np.concatenate([session.run(None, {"images": image[None]})[0] for image in images])
    assert together.shape == (5, 3)
    assert together.dtype == np.float32
    assert together == pytest.approx(alone, abs=TOLERANCE)
    assert together.sum(axis=1) == pytest.approx(np.ones(5), abs=TOLERANCE)


def test_both_files_say_what_they_are(client: TestClient, named: str, settings: Settings) -> None:
    shown = client.get(f"/classifiers/{named}").json()
    bundle = load_bundle(models_folder(settings) / "tiny")
    expected = {
        "format_version": "1",
        "classifier_id": shown["id"],
        "classifier_name": "colours",
        "classifier_version": "1",
        "labels": json.dumps(LABELS),
        "temperature": "1.0",
        "horizon": repr(shown["horizon"]),
        "unknown_threshold": repr(shown["report"]["unknown_threshold"]),
        "model": "tiny",
        "embedder_sha256": bundle.embedder_sha256,
        "embedding_size": "8",
        "preprocessing": bundle.manifest.preprocessing.model_dump_json(),
        "licence": "Apache-2.0",
    }
    about = session_of(export(client, named)).get_modelmeta().custom_metadata_map
    assert about.pop("input").startswith("images: uint8 (batch, height, width, 3)")
    assert about.pop("output").startswith("probabilities: float32 (batch, classes)")
    assert about.pop("created_at").startswith(shown["created_at"][:19])
    assert about == expected
    header = header_of(export(client, named, "safetensors"))
    del header["created_at"]
    assert header == expected


def header_of(file: bytes) -> dict[str, str]:
    length = int.from_bytes(file[:8], "little")
    header: dict[str, str] = json.loads(file[8 : 8 + length])["__metadata__"]
    return header


def test_a_safetensors_export_holds_the_weights(client: TestClient, named: str) -> None:
    tensors = safetensors.numpy.load(export(client, named, "safetensors"))
    assert set(tensors) == {"W"}
    assert tensors["W"].dtype == np.float32
    assert np.array_equal(tensors["W"], engine_of(client).classifiers.find(named).W)


def backbone_with(opset: int, domain: str = "") -> bytes:
    """A backbone that uses the names of the export, weights from inside a branch, and an operator with an input left
    out.
    """
    branch = {
        name: helper.make_graph(
            [helper.make_node(op, ["pixels", "scale"], [f"{name}_y"])],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)],
        )
        for name, op in (("then_branch", "Mul"), ("else_branch", "Sub"))
    }
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["images"], ["wide"], to=TensorProto.FLOAT),
            helper.make_node("Clip", ["wide", "", "largest"], ["pixels"]),
            helper.make_node("If", ["yes"], ["probabilities"], **branch),
            helper.make_node("Flatten", ["probabilities"], ["backbone/images"]),
            helper.make_node("Identity", ["backbone/images"], ["head/matmul_1"]),
        ],
        "backbone",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["batch", 8, 8, 3])],
        [helper.make_tensor_value_info("head/matmul_1", TensorProto.FLOAT, ["batch", 192])],
        [
            numpy_helper.from_array(np.array(1 / 255, dtype=np.float32), "scale"),
            numpy_helper.from_array(np.array(True), "yes"),
            numpy_helper.from_array(np.array(255, dtype=np.float32), "largest"),
        ],
        value_info=[helper.make_tensor_value_info("wide", TensorProto.FLOAT, ["batch", 8, 8, 3])],
    )
    opsets = [helper.make_opsetid(domain, opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=6).SerializeToString()


@pytest.fixture
def odd(settings: Settings, make_engine: MakeEngine) -> tuple[Classifier, Bundle]:
    """A classifier of embeddings that are the 8 x 8 pixels themselves, without a backbone."""
    bundle = load_bundle(models_folder(settings) / "tiny")
    preprocessing = bundle.manifest.preprocessing.model_copy(update={"image_size": 8})
    update = {"preprocessing": preprocessing, "embedding_size": 192}
    W = np.random.default_rng(0).normal(size=(3, 192)).astype(np.float32)
    classifier = replace(make_engine().adapt(colour_support()).classifier, W=W)
    return classifier, replace(bundle, manifest=bundle.manifest.model_copy(update=update))


@pytest.mark.parametrize(("opset", "domain"), [(LEAST_OPSET, ""), (12, ""), (13, "ai.onnx"), (20, "")])
def test_a_backbone_with_any_names_of_nodes_is_exported(
    odd: tuple[Classifier, Bundle], opset: int, domain: str
) -> None:
    classifier, bundle = odd
    model = onnx_file(classifier, replace(bundle, backbone=backbone_with(opset, domain)))
    exported = onnx.load_from_string(model)
    onnx.checker.check_model(exported, full_check=True)
    made = {name for node in exported.graph.node for name in node.output}
    assert {value.name for value in exported.graph.value_info} <= made
    image = np.random.default_rng(0).integers(0, 256, (20, 31, 3), dtype=np.uint8)
    (found,) = session_of(model).run(["probabilities"], {"images": image[None]})
    pixels = pixel_views(image, bundle.manifest.preprocessing)[0]
    embedding = (pixels.astype(np.float32) * np.float32(1 / 255)).reshape(1, -1)
    assert found == pytest.approx(classifier.probabilities(embedding), abs=TOLERANCE)
    (alike,) = session_of(model).run(["similarities"], {"images": np.zeros((1, 8, 8, 3), dtype=np.uint8)})
    assert alike.tolist() == [[0.0] * 3], "of an embedding without a length"


def test_the_temperature_and_the_threshold_of_a_calibration_are_exported(odd: tuple[Classifier, Bundle]) -> None:
    """Probabilities and similarities from their definitions, and what both files say of them."""
    classifier, bundle = odd
    classifier = replace(classifier, report=None, name="letters", version=3)
    law = TaskLaw(constant=math.log(2.5), shots=0.0, ways=0.0)
    manifest = bundle.manifest.model_copy(update={"calibration": calibration(law, 0.1234567890123)})
    bundle = replace(bundle, manifest=manifest, backbone=backbone_with(13))
    model = onnx_file(classifier, bundle)
    session = session_of(model)
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    (found,), (alike,) = session.run(["probabilities", "similarities"], {"images": image[None]})
    q, W = image.ravel() / 255, classifier.W.astype(np.float64)
    assert found == pytest.approx(softmax(W @ q / 2.5), abs=TOLERANCE)
    mean_length = np.sqrt(np.square(W).sum(axis=1).mean())
    assert alike == pytest.approx(W @ q / (np.linalg.norm(q) * mean_length), abs=TOLERANCE)
    for about in (session.get_modelmeta().custom_metadata_map, header_of(head_file(classifier, bundle))):
        assert (about["classifier_name"], about["classifier_version"]) == ("letters", "3")
        assert float(about["temperature"]) == pytest.approx(2.5)
        assert float(about["unknown_threshold"]) == 0.1234567890123
        assert datetime.fromisoformat(about["created_at"]) == classifier.created_at


def test_an_export_can_be_a_backbone(odd: tuple[Classifier, Bundle]) -> None:
    """No name of the first round is taken for one of the second."""
    classifier, bundle = odd
    inner = onnx_file(classifier, replace(bundle, backbone=backbone_with(13)))
    outer = replace(classifier, W=classifier.W[:, :3])
    session = session_of(onnx_file(outer, replace(bundle, backbone=inner)))
    (found,) = session.run(["probabilities"], {"images": np.zeros((1, 9, 9, 3), dtype=np.uint8)})
    assert found.shape == (1, 3)


@pytest.mark.parametrize("declared", [True, False])
def test_an_old_operator_set_or_none_is_refused(declared: bool, odd: tuple[Classifier, Bundle]) -> None:
    classifier, bundle = odd
    model = onnx.load_from_string(backbone_with(9))
    if not declared:
        del model.opset_import[:]
    received = 9 if declared else 0
    with pytest.raises(ServiceError, match=rf"operator set {received}; .* format=safetensors") as caught:
        onnx_file(classifier, replace(bundle, backbone=model.SerializeToString()))
    assert caught.value.code is ErrorCode.CANNOT_EXPORT
    assert caught.value.detail["received_opset"] == received


@pytest.mark.parametrize("kind", ["onnx", "safetensors"])
def test_an_export_is_a_download_with_a_file_name(client: TestClient, named: str, kind: str) -> None:
    answer = client.get(f"/classifiers/{named}/export", params={"format": kind})
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == f'attachment; filename="colours.{kind}"'
    assert int(answer.headers["content-length"]) == len(answer.content)


def test_labels_of_any_script_are_exported(client: TestClient) -> None:
    labels = ["naïve ☃", '"quoted"\n', "漢字"]
    support = [(data, label) for (data, _), label in zip(colour_support(1), labels, strict=True)]
    classifier = client.post("/adapt", **adapt_form(support)).json()["id"]
    about = session_of(export(client, classifier)).get_modelmeta().custom_metadata_map
    assert json.loads(about["labels"]) == labels
    assert json.loads(header_of(export(client, classifier, "safetensors"))["labels"]) == labels


def test_exports_that_cannot_be_made_are_refused(client: TestClient, named: str) -> None:
    for kind in ("pickle", ""):
        check_error(client.get(f"/classifiers/{named}/export?format={kind}"), ErrorCode.INVALID_REQUEST)
    check_error(client.get("/classifiers/nobody/export?format=onnx"), ErrorCode.CLASSIFIER_NOT_FOUND)


def test_a_changed_model_is_not_exported(tmp_path: Path, models_dir: Path, serve: Serve) -> None:
    bundle = Path(shutil.copytree(models_dir / "tiny", tmp_path / "models" / "tiny"))
    client = serve(models_dir=bundle.parent)
    client.post("/adapt", **adapt_form(name="known")).raise_for_status()
    edit_manifest(bundle, lambda content: content["preprocessing"].update(resize="stretch"))
    client.post("/models/reload").raise_for_status()
    for kind in ("onnx", "safetensors"):
        check_error(client.get(f"/classifiers/known/export?format={kind}"), ErrorCode.MODEL_CHANGED)


def test_exports_at_the_same_time_are_bounded(client: TestClient, named: str) -> None:
    exports = client.app.state.exports  # type: ignore[attr-defined]
    with exports.admit(MOST_EXPORTS):
        check_error(client.get(f"/classifiers/{named}/export"), ErrorCode.OVERLOADED)
    for _ in range(2 * MOST_EXPORTS):
        export(client, named)
    client.get("/classifiers/nobody/export")
    assert exports.pending == 0
