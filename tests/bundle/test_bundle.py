"""A complete bundle loads; any other is refused with an error that names the file and the reason."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from comln_serve.bundle import BundleError, find_bundles, load_bundle
from comln_serve.bundle.calibration import TaskLaw
from comln_serve.bundle.manifest import BACKBONE, HEAD, MANIFEST
from comln_serve.configuration.settings import Settings
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.engine.engine import load_models
from comln_serve.errors import StartupError
from comln_serve.machine import Provider
from tests.support.bundles import calibration, edit_manifest, edit_tensors, replace_file
from tests.support.paths import REPOSITORY

NAMES = ("tiny", "tiny-prototype", "tiny-learned")
BYTES = {file: (REPOSITORY / "tests" / "bundles" / "tiny" / file).stat().st_size for file in (BACKBONE, HEAD)}
Damage = Callable[[Path], object]


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


MEASURED = {"split": "val", "ways": 5, "queries": 10, "episodes": 9, "seed": 0} | {
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


def test_version_8_has_thresholds_relative_to_a_classifier_s_own(copy: Callable[..., Path]) -> None:
    folder = copy()
    law = calibration(TaskLaw(constant=0.7, shots=-0.5, ways=0.1), -0.25).model_copy(update={"unknown_relative": True})
    edit_manifest(folder, lambda content: content.update(calibration=law.model_dump(mode="json"), format_version=7))
    refused(folder, MANIFEST, "format_version 8")
    edit_manifest(folder, lambda content: content.update(format_version=8))
    found = load_bundle(folder).manifest.calibration
    assert found == law
    assert law.unknown_of([1, 1], 0.5) == 0.25
    absolute = law.model_copy(update={"unknown_relative": False})
    assert absolute.unknown_of([1, 1], 0.5) == -0.25
    assert "unknown_relative" not in absolute.model_dump(mode="json"), "earlier servers would refuse it"


def test_a_manifest_of_version_1_is_written_as_it_was(models_dir: Path) -> None:
    """No key that servers of version 1 would refuse."""
    text = (models_dir / "tiny" / MANIFEST).read_text(encoding="utf-8")
    content = json.loads(text)
    assert content["format_version"] == 1
    assert "comparisons" not in content
    assert load_bundle(models_dir / "tiny").manifest.model_dump(mode="json") == content


# --- What is refused -----------------------------------------------------------------------------


def content(file: str, change: Callable[[bytes], bytes]) -> Damage:
    """Change the bytes of a file, without the manifest."""
    return lambda folder: (folder / file).write_bytes(change((folder / file).read_bytes()))


def flipped(position: float) -> Callable[[bytes], bytes]:
    """Another lowest bit in the byte at this share of the file."""

    def flip(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[round(position * (len(data) - 1))] ^= 1
        return bytes(changed)

    return flip


def folder_instead(file: str) -> Damage:
    return lambda folder: ((folder / file).unlink(), (folder / file).mkdir())


def link_out(file: str) -> Damage:
    return lambda folder: (folder / file).symlink_to((folder / file).rename(folder.parent / file))


def keys(section: str = "", **values: object) -> Damage:
    """Set keys of the manifest, or of a section of it such as `files.head`."""

    def set_them(tree: dict[str, Any]) -> None:
        for name in section.split(".") if section else ():
            tree = tree[name]
        tree.update(values)

    return lambda folder: edit_manifest(folder, set_them)


def backbone_outside(folder: Path) -> None:
    """The bytes and the checksum are right; only the place is not."""
    (folder / BACKBONE).rename(folder.parent / BACKBONE)
    keys("files.backbone", path=f"../{BACKBONE}")(folder)


def tensor(name: str, value: object) -> Damage:
    return lambda folder: edit_tensors(folder, lambda tensors: tensors.update({name: np.array(value)}))


def no_tensor(name: str) -> Damage:
    return lambda folder: edit_tensors(folder, lambda tensors: tensors.pop(name))


def measured(shots: object) -> Damage:
    return keys(format_version=2, accuracy=[MEASURED | {"shots": shots}])


# What is done to a bundle, and the texts of the error.
TINY: list[tuple[Damage, *tuple[str, ...]]] = [
    *((content(file, flipped(at)), file, "SHA-256") for file in (BACKBONE, HEAD) for at in (0, 0.5, 1)),
    *((content(file, lambda data: data + b"\0"), file, f"says {BYTES[file]}") for file in (BACKBONE, HEAD)),
    *((content(file, lambda data: data[:-1]), file, f"says {BYTES[file]}") for file in (BACKBONE, HEAD)),
    *((lambda folder, file=file: (folder / file).unlink(), file, "missing") for file in (MANIFEST, BACKBONE, HEAD)),
    *((folder_instead(file), file) for file in (MANIFEST, BACKBONE, HEAD)),
    *((link_out(file), file, "plain file name") for file in (BACKBONE, HEAD)),
    (backbone_outside, "plain file name"),
    *(
        (keys(f"files.{part}", path=path), MANIFEST, repr(path), "plain file name")
        for part in ("backbone", "head")
        for path in ("../backbone.onnx", "/etc/passwd", "a/b", "a\\b", "..", ".", "", ".hidden", "a\0b")
    ),
    *(
        (keys(format_version=version), MANIFEST, "format_version", repr(version), "versions 1 to 8", remedy)
        for version, remedy in (
            (9, "Upgrade the server, or export the bundle again"),
            *((other, "Export the bundle again") for other in (0, "1", None, 1.5)),
        )
    ),
    *((measured(shots), MANIFEST, "accuracy.0") for shots in ([10, 1], [3, 3], [0, 2], [1], [1, 2, 3], "1-10", None)),
    # JSON that is none, or something else.
    *(
        (content(MANIFEST, lambda _, data=data: data), MANIFEST)
        for data in (b"", b"{", b"\xff\xfe\xff", b"[" * 100_000, b"[]", b"null", b'"text"', b'{"format_version":1}')
    ),
    (content(MANIFEST, lambda data: data + b" " * 5 * 2**20), MANIFEST, "larger than"),  # JSON all the same
    *(
        (lambda folder, data=data: replace_file(folder, "head", data), HEAD, "not a safetensors file")
        for data in (b"x", b"\0" * 64, b"\xff" * 64, b"\x08\0\0\0\0\0\0\0notjson!")
    ),
    (tensor("T", [20.0]), HEAD, "T must be float64 ()"),
    (tensor("T", np.float32(20.0)), HEAD, "T must be float64 ()"),
    (tensor("T", np.nan), HEAD, "T holds NaN"),
    (tensor("T", np.inf), HEAD, "T holds NaN or infinity"),
    (tensor("T", 20.5), HEAD, "T is 20.5"),
    (tensor("alpha", 1.0), HEAD, "needs the tensors ['T'], found ['T', 'alpha']"),
    (no_tensor("T"), HEAD, "needs the tensors ['T'], found []"),
    (keys(extra=1), "extra"),
    (keys("files", extra={}), "files.extra"),
    (lambda folder: edit_manifest(folder, lambda tree: tree.pop("solver")), "solver"),
    (keys("solver", rtol=0), "solver.rtol"),
    (keys("solver", rtol=2), "solver.rtol"),
    (keys("head", horizon=-1), "head.horizon"),
    (keys("head", horizon=float("nan")), "head.horizon"),
    (keys("head", horizon=21.0), "says 21.0"),
    (keys("head", start="other"), "head.start"),
    (keys("head", ways=5), "head.ways must be null"),
    (keys("files.head", sha256="A" * 64), "sha256"),
    (keys("files.head", bytes=0), "files.head.bytes"),
    (keys("preprocessing", image_size=7), "image_size"),
    (keys("preprocessing", resize="fold"), "resize"),
]
OTHERS: list[tuple[str, Damage, *tuple[str, ...]]] = [
    ("tiny-prototype", tensor("alpha", np.nan), HEAD, "alpha holds NaN"),
    ("tiny-prototype", tensor("alpha", np.float32(2.0)), HEAD, "alpha must be float64 ()"),
    ("tiny-prototype", no_tensor("alpha"), HEAD, "needs the tensors"),
    ("tiny-learned", tensor("W0", np.zeros((4, 8), np.float32)), HEAD, "W0 must be float32 (5, 8)"),
    ("tiny-learned", tensor("W0", np.zeros((5, 9), np.float32)), HEAD, "W0 must be float32 (5, 8)"),
    ("tiny-learned", tensor("W0", np.zeros((5, 8, 1), np.float32)), HEAD, "W0 must be float32"),
    ("tiny-learned", tensor("W0", np.zeros((5, 8))), HEAD, "W0 must be float32 (5, 8)"),
    ("tiny-learned", tensor("W0", np.full((5, 8), np.nan, np.float32)), HEAD, "W0 holds NaN"),
    ("tiny-learned", no_tensor("W0"), HEAD, "needs the tensors"),
    ("tiny-learned", keys("head", ways=None), "head.ways is needed"),
    ("tiny-learned", keys("head", ways=1), "head.ways"),
    ("tiny-learned", keys("head", ways=6), "W0 must be float32"),
]


@pytest.mark.parametrize("case", [*(("tiny", *row) for row in TINY), *OTHERS], ids=lambda case: " ".join(case[2:]))
def test_what_is_not_whole_or_contradicts_itself_is_refused(
    copy: Callable[..., Path], case: tuple[str, Damage, *tuple[str, ...]]
) -> None:
    bundle, damage, *expected = case
    folder = copy(bundle)
    damage(folder)
    refused(folder, *expected)


@pytest.mark.parametrize(
    ("part", "values", "said"),
    [
        ("preprocessing", {"crop_fraction": 0.875, "resize": "pad"}, "crop_fraction needs"),
        ("head", {"shot_offset": 2.5}, "shot_offset is for a prototype start"),
    ],
)
def test_keys_that_contradict_others_are_refused(
    copy: Callable[..., Path], part: str, values: dict[str, object], said: str
) -> None:
    folder = copy()
    keys(format_version=7)(folder)
    keys(part, **values)(folder)
    refused(folder, MANIFEST, said)


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
