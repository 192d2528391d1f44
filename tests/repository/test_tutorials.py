"""The tutorials' commands run, one after another, and have the results that the tutorials state."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.support.documents import blocks, document
from tests.support.live import live_server
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.slow

MODELS = REPOSITORY / "models"
ADDRESS = "http://localhost:8000"
OTHER_ADDRESS = "http://localhost:8001"

# Processors round the floating-point layers of an 8-bit network differently.
BETWEEN_CPUS = 0.015


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what the tutorials read from a checkout; they write beside it."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("examples", "models"):
        (folder / name).symlink_to(REPOSITORY / name)
    return folder


def run(command: str, folder: Path, address: str = ADDRESS) -> str:
    """What a block of bash prints; `comln-train` is this checkout's, and the server that of `address`."""
    trainer = f"{shlex.quote(sys.executable)} -m training"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command.replace(ADDRESS, address).replace("comln-train", trainer)],
        cwd=folder,
        env=os.environ
        | {
            "PYTHONPATH": str(REPOSITORY),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COMLN_URL": address,
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"error"' not in done.stdout, done.stdout
    return done.stdout


def test_photos_of_a_shop(checkout: Path, tmp_path: Path) -> None:
    text = document("tutorial-shop.md")
    prose = " ".join(text.split())
    commands = blocks(text, "bash")
    assert len(commands) == 9
    assert ["curl" in command for command in commands] == [True] * 8 + [False]
    with live_server(MODELS, tmp_path) as server:
        printed = [run(command, checkout, server.url) for command in commands]
    adapted, predicted, added, before, after, unknown = (json.loads(answer) for answer in printed[:6])
    assert sum(item["examples"] for item in adapted["classes"]) == 50
    held_out = adapted["report"]["held_out"]
    assert f"`held_out.accuracy` is {held_out['accuracy']}:" in prose
    assert f"{held_out['accuracy'] * held_out['judged']:.0f} of the 50 are right" in prose
    suspects = [(item["label"], item["likelier"]) for item in held_out["suspects"]]
    apples = ("pink-lady", "royal-gala")
    assert suspects in ([apples], [apples, apples]), "a second one is just below the limit"
    banana, apple = predicted["predictions"]
    assert (banana["label"], apple["label"]) == ("banana", "pink-lady")
    assert banana["probability"] == pytest.approx(0.94, abs=BETWEEN_CPUS)
    assert [item["probability"] for item in apple["top"]] == pytest.approx([0.71, 0.29], abs=BETWEEN_CPUS)
    assert (added["name"], added["version"], added["promoted"]) == ("shop", 2, True)
    for answer, label, stated in ((before, "pink-lady", 0.71), (after, "royal-gala", 0.7)):
        (prediction,) = answer["predictions"]
        assert prediction["label"] == label
        assert prediction["probability"] == pytest.approx(stated, abs=BETWEEN_CPUS)
        assert f"`{label}` with probability {stated}" in prose
    juice, character = unknown["predictions"]
    assert (juice["unknown"], character["unknown"]) == (False, True)
    stated = (juice["similarity"], unknown["unknown_threshold"], character["similarity"])
    assert stated == pytest.approx((0.71, 0.53, 0.12), abs=BETWEEN_CPUS)
    assert (checkout / "shop.onnx").stat().st_size > 1_000_000
    assert printed[7] == ""
    assert "10 classes, 50 images" in printed[8].splitlines()[0]
    assert printed[8].count(" banana ") == 7
    assert ", of 70 images\n" in printed[8]


def test_your_own_onnx_model(checkout: Path, tmp_path: Path) -> None:
    text = document("tutorial-onnx.md")
    prose = " ".join(text.split())
    wrap, sort, adapt, judge, copy, move, renew, promote = blocks(text, "bash")
    (shown,) = blocks(text, "text")
    assert run(wrap, checkout).startswith(shown)
    served, elsewhere = (block for block in blocks(text, "sh") if "comln-serve" in block)
    program, folder_flag, folder, *flags = shlex.split(served)
    assert (program, folder_flag) == ("comln-serve", "--models-dir")
    assert elsewhere == f"cd other && {served.rstrip()} --port 8001\n"
    (database := tmp_path / "other").mkdir()
    with live_server(checkout / folder, tmp_path, *flags) as server:
        run(sort, checkout)
        adapted = run(adapt, checkout, server.url)
        judged = run(judge, checkout, server.url)
        run(copy, checkout)
        with live_server(checkout / "other" / folder, database, *flags) as other:
            moved = run(move.replace(OTHER_ADDRESS, other.url), checkout, server.url)
        renewed = run(renew, checkout, server.url)
        promoted = run(promote, checkout, server.url)
        with httpx2.Client(base_url=server.url) as client:
            assert client.get("/classifiers/shop").json()["horizon_rule"] == "auto"
            photo = (checkout / "my-photos/new/banana/6.jpg").read_bytes()
            answer = client.post("/predict", data={"classifier": "shop"}, files={"images": photo}).json()
    assert answer["calibrated"] is True, "by the 50 photos: the bundle has no calibration yet"
    assert "10 classes, 50 images, model mine, promoted" in adapted
    (accuracy,) = re.findall(r"^expected accuracy: (\S+ %)", adapted, flags=re.MULTILINE)
    assert f"estimated from your 50 alone: here {accuracy}." in prose
    assert re.search(r"/new/banana/6.jpg +banana ", adapted)

    right = {name: right_of_50(printed) for name, printed in (("before", judged), ("after", renewed))}
    assert re.search(r"^found unknown: \d+ of 50 images of its classes, 5 of 5 of other classes$", judged, re.MULTILINE)
    stated = re.search(r"Here (\d+) of the 50 are right instead of (\d+),", prose)
    assert stated is not None
    assert f"Here {stated[2]} of the 50 are right, and `found unknown`" in prose
    assert right["before"] == pytest.approx(int(stated[2]), abs=1), "processors round differently"
    assert right["after"] == pytest.approx(int(stated[1]), abs=1)
    assert right_of_50(moved) == right["before"]
    assert "shop@2" in renewed.splitlines()[0]
    assert "not promoted" in renewed.splitlines()[0]
    assert "compared with shop@1: " in renewed
    assert promoted.splitlines() == [
        "shop stands for shop@2 now, instead of shop@1",
        "shop stands for shop@1 now, instead of shop@2",
    ]


def right_of_50(printed: str) -> float:
    """How many images are right by what `comln evaluate` prints of 50."""
    found = re.search(r"^accuracy: (\S+) % .*, of 50 images$", printed, re.MULTILINE)
    assert found is not None, printed
    return float(found[1]) / 2
