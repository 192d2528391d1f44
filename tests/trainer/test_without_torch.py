"""What `comln-train` does without torch, in a process where torch and what comes with it cannot be imported."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from comln_serve.bundle import load_bundle
from comln_serve.engine.embedding.backbone import OnnxBackbone
from tests.client.pictures import COLOURS
from tests.support.image_files import image_bytes
from tests.support.paths import REPOSITORY
from tests.support.programs import python
from training import cli, entry
from training.entry import EXTRAS

TINY = REPOSITORY / "tests" / "bundles" / "tiny-prototype"

PROGRAM = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from training.entry import main
sys.exit(main())
"""


def comln_train(*arguments: object, absent: tuple[str, ...] = EXTRAS["train"]) -> subprocess.CompletedProcess[str]:
    return python("-c", PROGRAM.format(absent=absent), *arguments)


@pytest.mark.slow
def test_a_model_is_wrapped_measured_and_calibrated(tmp_path: Path) -> None:
    photos, bundle = tmp_path / "photos", tmp_path / "models" / "mine"
    for label, colour in {**COLOURS, "grey": (90, 90, 90), "white": (250, 250, 250), "black": (5, 5, 5)}.items():
        (photos / label).mkdir(parents=True)
        for number in range(16):
            (photos / label / f"{number}.png").write_bytes(image_bytes(colour, (20, 20), seed=number))
    wrapped = comln_train("wrap", TINY / "backbone.onnx", "--to", bundle)
    assert wrapped.returncode == 0, wrapped.stderr
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    own, given = (OnnxBackbone(load_bundle(folder), "cpu").embed(images) for folder in (bundle, TINY))
    np.testing.assert_allclose(own, given / np.linalg.norm(given, axis=1, keepdims=True), atol=1e-6)
    assert "torch" not in load_bundle(bundle).manifest.training.versions

    measure = ("--data", photos, "--split", "all", "--queries", 3)
    measured = comln_train(
        "evaluate", bundle, *measure, "--task", "3x2", "--episodes", 5, "--baselines", "all", "--record"
    )
    assert measured.returncode == 0, measured.stderr
    assert "logistic-cv" in measured.stdout
    calibrated = comln_train("calibrate", bundle, *measure, "--task", "3x2", "--task", "3x4", "--episodes", 5)
    assert calibrated.returncode == 0, calibrated.stderr
    manifest = load_bundle(bundle).manifest
    assert [entry.task for entry in manifest.accuracy] == ["3-way 2-shot"]
    assert manifest.calibration is not None


@pytest.mark.slow
@pytest.mark.parametrize("command", ["fit", "report", "export", "wrap", "evaluate", "calibrate", "study"])
def test_every_command_says_how_it_is_used(command: str) -> None:
    found = comln_train(command, "--help")
    assert (found.returncode, found.stdout.startswith(f"usage: comln-train {command} ")) == (0, True), found.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "training/recipes/omniglot-conv4.yaml", "--data", "a", "--out", "b"],
        ["report", "run"],
        ["export", "run", "--to", "b", "--description", "a", "--data-description", "b", "--licence", "c"],
    ],
)
def test_what_needs_torch_says_so(arguments: list[str]) -> None:
    found = comln_train(*arguments)
    assert (found.returncode, found.stdout) == (2, "")
    assert "this needs torch, which the server does not need. In a clone: pip install" in found.stderr
    assert '".[train]"' in found.stderr


def test_a_recipe_is_read_first() -> None:
    found = comln_train("fit", "none.yaml", "--data", "a", "--out", "b")
    assert (found.returncode, "torch" in found.stderr) == (2, False)


def test_a_pointer_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    found = comln_train("wrap", model, "--to", tmp_path / "mine")
    assert (found.returncode, "a pointer of Git LFS" in found.stderr) == (2, True)


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_argv: list[str] | None = None) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)
    assert entry.main() == 130
    assert capsys.readouterr().err == "comln-train: interrupted\n"


def test_a_run_needs_torch(tmp_path: Path) -> None:
    (tmp_path / "best.pt").touch()
    found = comln_train("evaluate", tmp_path, "--data", tmp_path)
    assert (found.returncode, "this needs torch" in found.stderr) == (2, True)


def test_every_command_is_listed(tmp_path: Path) -> None:
    text = comln_train("--help").stdout
    for path in (REPOSITORY / "training" / "commands").glob("*.py"):
        has_command = "def add_arguments(" in path.read_text(encoding="utf-8")
        assert (f"\n    {path.stem} " in text or f"\n    {path.stem}\n" in text) == has_command, path


@pytest.mark.parametrize("absent", [name for name in EXTRAS["wrap"] if name != "matplotlib"])  # of `study`
def test_what_wrap_needs(absent: str) -> None:
    found = comln_train("wrap", "a.onnx", "--to", "b", absent=(absent, *EXTRAS["train"]))
    assert (found.returncode, found.stdout) == (2, "")
    assert f"this needs {absent}, which the server does not need" in found.stderr
    assert '".[wrap]"' in found.stderr


@pytest.mark.parametrize("absent", ["numpy", "pydantic", "onnxruntime"])
@pytest.mark.parametrize("arguments", [["--help"], ["wrap", "a.onnx", "--to", "b"]], ids=" ".join)
def test_where_the_server_is_not_installed(absent: str, arguments: list[str]) -> None:
    """As beside the client alone."""
    found = comln_train(*arguments, absent=(absent, *EXTRAS["wrap"], *EXTRAS["train"]))
    assert (found.returncode, found.stdout) == (2, "")
    if absent == "onnxruntime":  # what the extra `wrap` brings is asked for first
        assert found.stderr.startswith("comln-train: this needs yaml, ")
        return
    assert found.stderr == (
        f"comln-train: this needs the server, and {absent} is not installed. In a clone: "
        'pip install -c constraints.txt ".[cpu,wrap]"\n'
    )
