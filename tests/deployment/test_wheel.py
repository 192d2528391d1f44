"""The first minute of somebody who installs the package: in an empty folder, the server serves the photo model."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from comln_serve import entry
from comln_serve.api.page import page_files
from tests.support import http
from tests.support.live import free_port, running
from tests.support.messages import adapt_form, predict_form
from tests.support.paths import REPOSITORY
from tests.support.waiting import wait_until

GROCERIES = REPOSITORY / "examples" / "groceries"


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ((), 'ONNX Runtime is not installed: pip install "comln-serve[cpu]", or "comln-serve[cuda]" for NVIDIA GPUs'),
        (("onnxruntime", "onnxruntime-gpu"), "onnxruntime and onnxruntime-gpu are both installed and overwrite"),
    ],
)
def test_one_runtime_has_to_be_installed(
    installed: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "distributions", lambda name: [name] if name in installed else [])
    monkeypatch.setattr(entry, "find_spec", lambda _name: installed or None)
    assert entry.main() == 2
    assert said in capsys.readouterr().err


def test_with_one_runtime_the_command_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["comln-serve", "--version"])
    assert entry.main() == 0
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_installed_wheel_serves_the_photo_model(tmp_path: Path) -> None:
    """Built from what is tracked, as in a clean checkout, and installed by pip into an environment of its own."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True)
    for name in filter(None, tracked.stdout.decode().split("\0")):
        if name.startswith(("comln_serve/", "training/", "models/")) or "/" not in name:
            (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "source" / name).write_bytes((REPOSITORY / name).read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), "./source"]
    subprocess.run(build, cwd=tmp_path, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"comln_serve/api/page/{path}" for path in ("index.html", *page_files())} <= names
    assert {name.split("/")[2] for name in names if name.startswith("comln_serve/models/")} == {
        "photos-efficientnet-lite0"
    }
    assert {"training/recipes/image-folder.yaml", "training/data/splits/omniglot-test.json"} <= names

    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python, constraints = tmp_path / "venv" / "bin" / "python", REPOSITORY / "constraints.txt"
    install = [str(python), "-m", "pip", "install", "--quiet", "-c", str(constraints), f"{wheel}[cpu]"]
    subprocess.run(install, check=True)
    subprocess.run([str(python), "-m", "pip", "check"], check=True)

    port, empty = free_port(), tmp_path / "empty"
    empty.mkdir()
    url, log = f"http://127.0.0.1:{port}", tmp_path / "log"
    command = [str(python.with_name("comln-serve")), "--port", str(port), "--log-format", "text"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with running(command, url, log, environment, cwd=empty):
        wait_until(lambda: "ready: the page is at" in log.read_text())
        lines = [line for line in log.read_text().splitlines() if "comln_serve.requests" not in line]
        assert lines[-1].endswith(f"ready: the page is at {url}/")
        (model,) = http.get(f"{url}/models").json()["models"]
        assert (model["name"], model["default"], model["provider"]) == ("photos-efficientnet-lite0", True, "cpu")
        assert "<html" in http.get(f"{url}/", headers={"Accept": "text/html"}).text
        photos = [(path.read_bytes(), path.parts[-3]) for path in sorted(GROCERIES.glob("*/support/*"))]
        made = http.post(f"{url}/adapt", **adapt_form(photos, name="known"))
        assert made.status_code == 201, made.text
        found = http.post(f"{url}/predict", **predict_form(photos[0][0])).json()["predictions"]
        assert found[0]["label"] == photos[0][1]
