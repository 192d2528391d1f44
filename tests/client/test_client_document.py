"""Every block of docs/client.md and the client's part of the README runs as printed."""

import csv
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from comln_serve.client.commands import main
from tests.client.pictures import COLOURS, class_folder
from tests.support.image_files import image_bytes
from tests.support.live import LiveServer, live_server
from tests.support.paths import REPOSITORY

DOCUMENT = (REPOSITORY / "docs" / "client.md").read_text(encoding="utf-8")
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8000"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture(scope="module")
def server(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("server")
    with live_server(models_dir, folder, "--default-model", "tiny-prototype") as running:
        yield running


@pytest.fixture
def workplace(tmp_path: Path, models_dir: Path, server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with what the blocks name: photos, more-photos, kept-apart, new-photos, models."""
    class_folder(tmp_path / "photos", each=4)
    class_folder(tmp_path / "more-photos", each=2)
    class_folder(tmp_path / "kept-apart", each=2, seed=40)
    (tmp_path / "new-photos").mkdir()
    for number, colour in enumerate(COLOURS.values(), 1):
        (tmp_path / "new-photos" / f"{number}.png").write_bytes(image_bytes(colour, seed=20))
    (tmp_path / "models").symlink_to(models_dir)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("COMLN_DEFAULT_MODEL", "tiny-prototype")
    monkeypatch.setenv("COMLN_URL", server.url)
    return tmp_path


def run_python(script: str) -> str:
    """What a program prints."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_commands(block: str) -> str:
    """What the commands of a block print. In this process, where each would take a second to start."""
    printed = ""
    for line in block.splitlines():
        command, _, file = line.partition(" < ")
        program, *arguments = shlex.split(command)
        if program == "export":
            assert arguments == [f"COMLN_URL={ADDRESS}"]  # the fixture sets the test's
            continue
        assert program == "comln"
        result = CliRunner().invoke(main, arguments, input=Path(file).read_bytes() if file else None)
        assert result.exit_code == 0, line + result.output
        printed += result.stdout
    return printed


@pytest.mark.slow
def test_python(server: LiveServer, workplace: Path) -> None:
    """As one program, in their order."""
    parts = blocks(DOCUMENT, "python")
    assert len(parts) == 8
    script = "\nprint('---')\n".join(parts).replace(ADDRESS, server.url) + "\nclient.close()\n"
    shown = run_python(script).split("---\n")
    assert [line.rsplit(maxsplit=2)[:2] for line in shown[0].splitlines()] == [
        [f"new-photos/{number}.png", colour] for number, colour in enumerate(COLOURS, 1)
    ]
    assert shown[1] == "blue green\n"
    assert re.fullmatch(r"blue (True|False|None) \['blue', .*\]\n", shown[2])
    assert re.fullmatch(r"100\.0% of 6 images are right; 95% interval [\d.]+% to 100\.0%\n", shown[4])
    assert shown[5] == "0.0 0 0 1.0\n"
    assert shown[6].startswith("classifier_not_found There is no classifier 'no-such-shop'")
    assert shown[7] == "1.0\n(2, 3)\n"


def test_commands(server: LiveServer, workplace: Path) -> None:
    with_server, without = blocks(DOCUMENT, "bash")
    run_commands("comln adapt photos --name shop")  # so that there is a shop@1
    shown = run_commands(with_server)
    assert "new classes: sky blue\n" in shown
    with (workplace / "predictions.csv").open(encoding="utf-8", newline="") as file:
        assert [row["label"] for row in csv.DictReader(file)] == list(COLOURS)
    assert (workplace / "shop.onnx").stat().st_size > 0
    assert shown.endswith(f"{server.url}/\n")
    # In a process of their own, as engines set it up.
    lines = [shlex.split(line)[1:] for line in without.splitlines()]
    calls = "".join(f"main({line!r}, standalone_mode=False)\n" for line in lines)
    shown = run_python(f"from comln_serve.client.commands import main\n{calls}")
    assert shown.startswith("shop@1 (clf_")
    assert (workplace / "local.db").exists()


def test_what_the_light_installation_needs() -> None:
    """The document names exactly the packages of the extra."""
    (install,) = [block for block in blocks(DOCUMENT, "sh") if "--no-deps" in block]
    named = set(install.splitlines()[1].split()[2:])
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    (extra,) = re.findall(r"^client = \[\n(.*?)^\]", project, flags=re.DOTALL | re.MULTILINE)
    assert named == set(re.findall(r'"([a-z0-9]+)', extra))


def test_readme(server: LiveServer, workplace: Path) -> None:
    (script,) = [block for block in blocks(README, "python") if "comln_serve.client" in block]
    shown = run_python(script.replace("http://localhost:8000", server.url) + "client.close()\n")
    assert [line.split()[1] for line in shown.splitlines()] == list(COLOURS)
    adapt, predict, evaluate = re.findall(r"`(comln (?:adapt|predict|evaluate) [^`]+)`", README)
    assert "expected accuracy" in run_commands(adapt)
    run_commands(predict)
    assert ", of 6 images" in run_commands(evaluate)
    assert (workplace / "out.csv").exists()
