"""A complete bundle loads; any other is refused with an error that names the file and the reason."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from comln_serve.bundle import BundleError, find_bundles, load_bundle
from comln_serve.bundle.manifest import BACKBONE, HEAD, MANIFEST
from comln_serve.configuration.settings import Settings
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.engine.engine import load_models
from comln_serve.errors import StartupError
from comln_serve.machine import Provider
from tests.support.bundles import edit_manifest, edit_tensors, replace_file
from tests.support.paths import REPOSITORY

NAMES = ("tiny", "tiny-prototype", "tiny-learned")


@pytest.fixture
def copy(models_dir: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A bundle of its own to damage."""

    def make(name: str = "tiny") -> Path:
        return Path(shutil.copytree(models_dir / name, tmp_path / "models" / name))

    return make


def refused(folder: Path, *expected: str) -> None:
    """Loading raises, and the message holds the folder and every expected text."""
    with pytest.raises(BundleError) as caught:
        load_bundle(folder)
    message = str(caught.value)
    assert all(text in message for text in (str(folder), *expected)), message


@pytest.mark.parametrize("name", NAMES)
def test_whole_bundle_loads(models_dir: Path, name: str) -> None:
    bundle = load_bundle(models_dir / name)
    assert bundle.name == name
    assert bundle.backbone == (models_dir / name / BACKBONE).read_bytes()
    head = bundle.head
    assert head.horizon == bundle.manifest.head.horizon > 0
    assert head.ways == bundle.manifest.head.ways == (5 if name == "tiny-learned" else None)
    assert (head.alpha is not None) == (name == "tiny-prototype")
    if head.W0 is not None:
        assert head.W0.shape == (5, bundle.manifest.embedding_size)


@pytest.mark.parametrize("file", [BACKBONE, HEAD])
@pytest.mark.parametrize("position", [0, 0.5, 1])
def test_a_changed_byte_is_refused(copy: Callable[..., Path], file: str, position: float) -> None:
    folder = copy()
    data = bytearray((folder / file).read_bytes())
    data[round(position * (len(data) - 1))] ^= 1
    (folder / file).write_bytes(data)
    refused(folder, file, "SHA-256")


@pytest.mark.parametrize("file", [BACKBONE, HEAD])
@pytest.mark.parametrize("change", [lambda data: data + b"\0", lambda data: data[:-1]])
def test_a_changed_size_is_refused(copy: Callable[..., Path], file: str, change: Callable[[bytes], bytes]) -> None:
    folder = copy()
    data = (folder / file).read_bytes()
    (folder / file).write_bytes(change(data))
    refused(folder, file, f"says {len(data)}")


@pytest.mark.parametrize("file", [MANIFEST, BACKBONE, HEAD])
def test_a_missing_file_is_refused(copy: Callable[..., Path], file: str) -> None:
    folder = copy()
    (folder / file).unlink()
    refused(folder, file, "missing")


@pytest.mark.parametrize("file", [MANIFEST, BACKBONE, HEAD])
def test_a_folder_in_place_of_a_file_is_refused(copy: Callable[..., Path], file: str) -> None:
    folder = copy()
    (folder / file).unlink()
    (folder / file).mkdir()
    refused(folder, file)


@pytest.mark.parametrize("version", [0, 8, "1", None, 1.5])
def test_an_unknown_format_version_is_refused(copy: Callable[..., Path], version: object) -> None:
    folder = copy()
    edit_manifest(folder, lambda content: content.update(format_version=version))
    remedy = "Upgrade the server, or export" if version == 8 else "Export"
    refused(folder, MANIFEST, "format_version", repr(version), "versions 1 to 7", f"{remedy} the bundle again")


MEASURED = {
    "split": "val",
    "ways": 5,
    "queries": 10,
    "episodes": 9,
    "seed": 0,
    "mean": 0.9,
    "interval": 0.01,
    "command": "none",
}


def test_a_version_1_manifest_with_ranges_of_shots_is_refused(copy: Callable[..., Path]) -> None:
    folder = copy()
    entry = MEASURED | {"shots": [1, 10]}
    edit_manifest(folder, lambda content: content.update(accuracy=[entry]))
    refused(folder, MANIFEST, "format_version 2")
    edit_manifest(folder, lambda content: content.update(format_version=2))
    (found,) = load_bundle(folder).manifest.accuracy
    assert found.shots == (1, 10)
    assert found.task == "5-way 1-to-10-shot"


@pytest.mark.parametrize(
    ("version", "part", "key", "value"),
    [
        (3, "head", "whitening", 3.0),
        (3, "head", "horizon_rule", "auto"),
        (5, "preprocessing", "crop_fraction", 0.875),
        (6, "preprocessing", "support_views", [0.65]),
        (7, "head", "shot_offset", 2.5),
    ],
)
def test_what_a_later_version_has(copy: Callable[..., Path], version: int, part: str, key: str, value: object) -> None:
    """It is refused under an earlier version, and becomes part of what the classifiers depend on."""
    folder = copy("tiny-prototype")
    before = load_bundle(folder)
    edit_manifest(folder, lambda content: content[part].update({key: value}))
    refused(folder, MANIFEST, f"format_version {version}")
    edit_manifest(folder, lambda content: content.update(format_version=version))
    bundle = load_bundle(folder)
    assert bundle.manifest.model_dump(mode="json")[part][key] == value
    if part == "head":
        assert getattr(bundle.head, key) == value
        assert bundle.embedder_sha256 == before.embedder_sha256, "classifiers keep working under another head"
        assert bundle.head_sha256 != before.head_sha256
    else:
        assert bundle.embedder_sha256 != before.embedder_sha256, "what is stored of an image is another"


@pytest.mark.parametrize(
    ("part", "keys", "said"),
    [
        ("preprocessing", {"crop_fraction": 0.875, "resize": "pad"}, "crop_fraction needs"),
        ("head", {"shot_offset": 2.5}, "shot_offset is for a prototype start"),
    ],
)
def test_keys_that_contradict_others_are_refused(
    copy: Callable[..., Path], part: str, keys: dict[str, object], said: str
) -> None:
    folder = copy()
    edit_manifest(folder, lambda content: content.update(format_version=7) or content[part].update(keys))
    refused(folder, MANIFEST, said)


def test_hashes_stay_what_they_are() -> None:
    """Stored classifiers have them: another hash of the same content would part classifiers from their model."""
    bundle = load_bundle(REPOSITORY / "models/photos-efficientnet-lite0")
    assert bundle.manifest.files.backbone.sha256.startswith("5beb6785776fa0af"), (
        "another network: its hashes belong here"
    )
    assert bundle.embedder_sha256.startswith("bccb4d46ec98024e")
    assert bundle.head_sha256.startswith("b6cec8084b178689")


def test_version_4_has_the_form_of_stored_embeddings(copy: Callable[..., Path]) -> None:
    folder = copy()
    assert load_bundle(folder).manifest.stored_embeddings == "float32"
    edit_manifest(folder, lambda content: content.update(stored_embeddings="int16"))
    refused(folder, MANIFEST, "format_version 4")
    edit_manifest(folder, lambda content: content.update(format_version=4))
    assert load_bundle(folder).manifest.stored_embeddings == "int16"
    edit_manifest(folder, lambda content: content.update(stored_embeddings="float16"))
    refused(folder, MANIFEST, "stored_embeddings", "float16")


@pytest.mark.parametrize("shots", [[10, 1], [3, 3], [0, 2], [1], [1, 2, 3], "1-10", None])
def test_impossible_ranges_of_shots_are_refused(copy: Callable[..., Path], shots: object) -> None:
    folder = copy()
    content = {"format_version": 2, "accuracy": [MEASURED | {"shots": shots}]}
    edit_manifest(folder, lambda manifest: manifest.update(content))
    refused(folder, MANIFEST, "accuracy.0")


def test_a_manifest_of_version_1_is_written_as_it_was(models_dir: Path) -> None:
    """No key that servers of version 1 would refuse."""
    text = (models_dir / "tiny" / MANIFEST).read_text(encoding="utf-8")
    content = json.loads(text)
    assert content["format_version"] == 1
    assert "comparisons" not in content
    assert load_bundle(models_dir / "tiny").manifest.model_dump(mode="json") == content


@pytest.mark.parametrize("path", ["../backbone.onnx", "/etc/passwd", "a/b", "a\\b", "..", ".", "", ".hidden", "a\0b"])
@pytest.mark.parametrize("part", ["backbone", "head"])
def test_a_path_outside_the_folder_is_refused(copy: Callable[..., Path], part: str, path: str) -> None:
    folder = copy()
    edit_manifest(folder, lambda content: content["files"][part].update(path=path))
    refused(folder, MANIFEST, repr(path), "plain file name")


def test_an_existing_path_outside_the_folder_is_refused(copy: Callable[..., Path]) -> None:
    """The bytes and the checksum are right; only the place is not."""
    folder = copy()
    (folder / BACKBONE).rename(folder.parent / BACKBONE)
    edit_manifest(folder, lambda content: content["files"]["backbone"].update(path=f"../{BACKBONE}"))
    refused(folder, "plain file name")


@pytest.mark.parametrize("file", [BACKBONE, HEAD])
def test_a_symbolic_link_out_of_the_folder_is_refused(copy: Callable[..., Path], file: str) -> None:
    folder = copy()
    (folder / file).rename(folder.parent / file)
    (folder / file).symlink_to(folder.parent / file)
    refused(folder, file, "plain file name")


def _set(name: str, value: object) -> Callable[[dict[str, NDArray[Any]]], object]:
    return lambda tensors: tensors.update({name: np.array(value)})


@pytest.mark.parametrize(
    ("bundle", "change", "expected"),
    [
        ("tiny", _set("T", [20.0]), "T must be float64 ()"),
        ("tiny", _set("T", np.float32(20.0)), "T must be float64 ()"),
        ("tiny", _set("T", np.nan), "T holds NaN"),
        ("tiny", _set("T", np.inf), "T holds NaN or infinity"),
        ("tiny", _set("T", 20.5), "T is 20.5"),
        ("tiny", _set("alpha", 1.0), "needs the tensors ['T'], found ['T', 'alpha']"),
        ("tiny", lambda tensors: tensors.clear(), "needs the tensors ['T'], found []"),
        ("tiny-prototype", _set("alpha", np.nan), "alpha holds NaN"),
        ("tiny-prototype", _set("alpha", np.float32(2.0)), "alpha must be float64 ()"),
        ("tiny-prototype", lambda tensors: tensors.pop("alpha"), "needs the tensors"),
        ("tiny-learned", _set("W0", np.zeros((4, 8), np.float32)), "W0 must be float32 (5, 8)"),
        ("tiny-learned", _set("W0", np.zeros((5, 9), np.float32)), "W0 must be float32 (5, 8)"),
        ("tiny-learned", _set("W0", np.zeros((5, 8, 1), np.float32)), "W0 must be float32"),
        ("tiny-learned", _set("W0", np.zeros((5, 8))), "W0 must be float32 (5, 8)"),
        ("tiny-learned", _set("W0", np.full((5, 8), np.nan, np.float32)), "W0 holds NaN"),
        ("tiny-learned", lambda tensors: tensors.pop("W0"), "needs the tensors"),
    ],
)
def test_tensors_that_contradict_the_manifest_are_refused(
    copy: Callable[..., Path], bundle: str, change: Callable[[dict[str, NDArray[Any]]], object], expected: str
) -> None:
    folder = copy(bundle)
    edit_tensors(folder, change)
    refused(folder, HEAD, expected)


@pytest.mark.parametrize("data", [b"x", b"\0" * 64, b"\xff" * 64, b"\x08\0\0\0\0\0\0\0notjson!"])
def test_a_head_that_is_no_safetensors_file_is_refused(copy: Callable[..., Path], data: bytes) -> None:
    folder = copy()
    replace_file(folder, "head", data)
    refused(folder, HEAD, "not a safetensors file")


@pytest.mark.parametrize(
    ("bundle", "change", "expected"),
    [
        ("tiny", lambda content: content.update(extra=1), "extra"),
        ("tiny", lambda content: content["files"].update(extra={}), "files.extra"),
        ("tiny", lambda content: content.pop("solver"), "solver"),
        ("tiny", lambda content: content["solver"].update(rtol=0), "solver.rtol"),
        ("tiny", lambda content: content["solver"].update(rtol=2), "solver.rtol"),
        ("tiny", lambda content: content["head"].update(horizon=-1), "head.horizon"),
        ("tiny", lambda content: content["head"].update(horizon=float("nan")), "head.horizon"),
        ("tiny", lambda content: content["head"].update(horizon=21.0), "says 21.0"),
        ("tiny", lambda content: content["head"].update(start="other"), "head.start"),
        ("tiny", lambda content: content["head"].update(ways=5), "head.ways must be null"),
        ("tiny-learned", lambda content: content["head"].update(ways=None), "head.ways is needed"),
        ("tiny-learned", lambda content: content["head"].update(ways=1), "head.ways"),
        ("tiny-learned", lambda content: content["head"].update(ways=6), "W0 must be float32"),
        ("tiny", lambda content: content["files"]["head"].update(sha256="A" * 64), "sha256"),
        ("tiny", lambda content: content["files"]["head"].update(bytes=0), "files.head.bytes"),
        ("tiny", lambda content: content["preprocessing"].update(image_size=7), "image_size"),
        ("tiny", lambda content: content["preprocessing"].update(resize="fold"), "resize"),
    ],
)
def test_a_manifest_with_wrong_values_is_refused(
    copy: Callable[..., Path], bundle: str, change: Callable[[dict[str, Any]], object], expected: str
) -> None:
    folder = copy(bundle)
    edit_manifest(folder, change)
    refused(folder, expected)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe\xff", b"[" * 100_000, b"[]", b"null", b'"text"', b'{"format_version":1}']
)
def test_a_manifest_that_is_not_json_is_refused(copy: Callable[..., Path], content: bytes) -> None:
    folder = copy()
    (folder / MANIFEST).write_bytes(content)
    refused(folder, MANIFEST)


def test_a_huge_manifest_is_refused_unread(copy: Callable[..., Path]) -> None:
    folder = copy()
    with (folder / MANIFEST).open("ab") as file:
        file.write(b" " * 5 * 2**20)  # JSON all the same
    refused(folder, MANIFEST, "larger than")


@pytest.mark.parametrize("data", [b"garbage", b"\0" * 100, b"\x08\x07"])
def test_a_backbone_that_is_no_graph_is_refused(copy: Callable[..., Path], data: bytes) -> None:
    folder = copy()
    replace_file(folder, "backbone", data)
    with pytest.raises(StartupError, match="ONNX Runtime cannot open the backbone") as caught:
        OnnxBackbone(load_bundle(folder), "cpu")
    assert str(folder) in str(caught.value)


def graph(inputs: list[Any], outputs: list[Any], nodes: list[Any]) -> bytes:
    made = onnx.helper.make_graph(nodes, "g", inputs, outputs)
    opset = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(made, opset_imports=opset, ir_version=10)
    return model.SerializeToString()


def _signature(kind: str) -> bytes:
    node, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    image = value("images", onnx.TensorProto.UINT8, ["batch", 16, 16, 3])
    flat = node("Flatten", ["images"], ["flat"])
    cast = node("Cast", ["flat"], ["out"], to=onnx.TensorProto.FLOAT)
    out = value("out", onnx.TensorProto.FLOAT, ["batch", 768])
    if kind == "width":
        return graph([image], [out], [flat, cast])
    if kind == "fixed batch":
        fixed = value("images", onnx.TensorProto.UINT8, [2, 16, 16, 3])
        return graph([fixed], [value("out", onnx.TensorProto.FLOAT, [2, 768])], [flat, cast])
    if kind == "float input":
        image = value("images", onnx.TensorProto.FLOAT, ["batch", 16, 16, 3])
        return graph([image], [value("flat", onnx.TensorProto.FLOAT, ["batch", 768])], [flat])
    if kind == "two outputs":
        other = value("flat", onnx.TensorProto.UINT8, ["batch", 768])
        return graph([image], [out, other], [flat, cast])
    if kind == "two inputs":
        other = value("other", onnx.TensorProto.UINT8, ["batch", 16, 16, 3])
        return graph([image, other], [out], [flat, cast])
    total = node("ReduceSum", ["out"], ["sum"], keepdims=0)
    return graph([image], [value("sum", onnx.TensorProto.FLOAT, [])], [flat, cast, total])  # "scalar output"


@pytest.mark.parametrize("kind", ["width", "fixed batch", "float input", "two outputs", "two inputs", "scalar output"])
def test_a_backbone_with_other_inputs_or_outputs_is_refused(copy: Callable[..., Path], kind: str) -> None:
    folder = copy()
    replace_file(folder, "backbone", _signature(kind))
    with pytest.raises(StartupError, match=r"as bundle\.json says") as caught:
        OnnxBackbone(load_bundle(folder), "cpu")
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("provider", ["cpu", "openvino"])
def test_a_backbone_with_weights_in_other_files_is_refused(
    copy: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: Provider
) -> None:
    """A graph may name a file to take weights from; no checksum would cover it."""
    folder = copy()
    model = onnx.load_from_string((folder / BACKBONE).read_bytes())
    onnx.save_model(
        model, str(tmp_path / "outside.onnx"), save_as_external_data=True, location="weights.bin", size_threshold=512
    )
    (folder / "weights.bin").write_bytes((tmp_path / "weights.bin").read_bytes())
    replace_file(folder, "backbone", (tmp_path / "outside.onnx").read_bytes())
    for working_folder in (tmp_path, folder):
        monkeypatch.chdir(working_folder)
        with pytest.raises(StartupError, match=r"weights\.bin"):
            OnnxBackbone(load_bundle(folder), provider)


def test_load_models_names_the_bad_bundle(copy: Callable[..., Path], models_dir: Path, settings: Settings) -> None:
    """One bad bundle of several stops the start: serving fewer models than asked for is silent."""
    folder = copy("tiny-prototype")
    shutil.copytree(models_dir / "tiny", folder.parent / "tiny")
    (folder / HEAD).write_bytes(b"x")
    with pytest.raises(StartupError, match="tiny-prototype"):
        load_models(settings.model_copy(update={"models_dir": folder.parent}))


def test_find_bundles_in_order(models_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(models_dir, tmp_path, dirs_exist_ok=True)
    shutil.copytree(models_dir / NAMES[0], tmp_path / ".being-copied")
    assert [path.name for path in find_bundles(tmp_path)] == sorted(NAMES)


def test_find_bundles_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no such folder"):
        find_bundles(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match="no such folder"):
        find_bundles(tmp_path / "file")


def test_find_bundles_needs_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with pytest.raises(BundleError, match=r"no bundle in it.*comln-train export"):
        find_bundles(tmp_path)
