"""The commands of README and reference work as printed; the documents list what the code has."""

import csv
import json
import re
import subprocess
from pathlib import Path

import pytest

from comln_serve.api.errors import STATUS
from docs._hooks.settings_table import settings_table
from tests.support.documents import blocks, document
from tests.support.live import live_server
from tests.support.paths import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
MODELS = REPOSITORY / "models"


def curl_commands(text: str) -> list[str]:
    return [block for block in blocks(text, "bash") if "curl" in block]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_commands_have_no_comments() -> None:
    """zsh, the shell of macOS, takes them for arguments."""
    for path in (REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        commands = "\n".join([*blocks(text, "sh"), *blocks(text, "bash")])
        assert re.findall(r"^.*(?:\s|^)#\s.*$", commands, re.MULTILINE) == [], path.name


def test_curl_commands_work_as_printed(tmp_path: Path) -> None:
    commands = [*curl_commands(README), *curl_commands(document("http.md"))]
    assert len(commands) == 5
    with live_server(MODELS, tmp_path) as server:
        answers = []
        for command in commands:
            assert "http://localhost:8000" in command
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command.replace("http://localhost:8000", server.url)],
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            answers.append(json.loads(done.stdout))
    adapted, predicted, by_json, noted, renamed = answers
    assert [item["label"] for item in adapted["classes"]] == ["keble", "oriya", "tengwar"]
    assert [item["examples"] for item in adapted["classes"]] == [2, 2, 2]
    # The answer the README shows, but for the id and the timings.
    (shown,) = map(json.loads, blocks(README, "json"))
    assert predicted.keys() == shown.keys()
    assert predicted["classifier"] == adapted["id"]
    for found, printed in zip(predicted["predictions"], shown["predictions"], strict=True):
        assert found["label"] == printed["label"]
        assert found["probability"] == pytest.approx(printed["probability"], abs=1e-3)
    assert len(by_json["predictions"]) == 1
    assert (noted["id"], noted["metadata"], noted["expires_at"]) == (adapted["id"], {"line": "3"}, None)
    assert [item["label"] for item in renamed["classes"]] == ["Keble", "Oriya", "tengwar"]
    assert renamed["version"] == 2


def test_python_block_runs() -> None:
    (block,) = blocks(document("training.md"), "python")
    scope: dict[str, object] = {}
    exec(compile(block, "training.md", "exec"), scope)
    for name in ("phi", "T"):
        assert getattr(scope[name], "grad") is not None  # noqa: B009


def test_quoted_accuracies_are_those_of_the_manifests() -> None:
    rows = re.findall(
        r"^\| `([\w-]+)` \| (\w+) \| (\d+)-way (\d+)-shot \| ([\d.]+) \+- ([\d.]+) \|$",
        document("results.md"),
        re.MULTILINE,
    )
    # The photo bundle is measured on several data sets, in benchmarks/results.
    assert {name for name, *_ in rows} | {"photos-efficientnet-lite0"} == {
        path.parent.name for path in MODELS.glob("*/bundle.json")
    }
    for name, split, ways, shots, mean, interval in rows:
        manifest = json.loads((MODELS / name / "bundle.json").read_text())
        (entry,) = [
            a for a in manifest["accuracy"] if (a["split"], a["ways"], a["shots"]) == (split, int(ways), int(shots))
        ]
        assert f"{100 * entry['mean']:.2f}" == mean
        assert f"{100 * entry['interval']:.2f}" == interval
        assert entry["episodes"] == 1000


@pytest.mark.parametrize("name", ["README.md", "docs/results.md"])
def test_quoted_accuracies_on_left_out_photos_are_those_measured(name: str) -> None:
    with (REPOSITORY / "benchmarks" / "results" / "domains.csv").open(encoding="utf-8") as file:
        measured = {(row["data"], row["task"], row["head"]): row for row in csv.DictReader(file)}
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| ([\w, ]*) ?\| (\d+)-way,? (\d+)(?: to (\d+))?[- ]shots? "
        r"\| ([\d.]+) \+- ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$",
        text,
        re.MULTILINE,
    )
    assert len(rows) == {"README.md": 5, "docs/results.md": 8}[name]
    data = ""
    for left_out, ways, least, most, mean, interval, *simple in rows:
        data = {"traffic signs": "signs"}.get(words := left_out.strip().partition(",")[0], words) or data
        task = f"{ways}x{least}-{most}" if most else f"{ways}x{least}"
        learned = measured[data, task, "learned T"]
        assert f"{100 * float(learned['accuracy']):.2f}" == mean
        assert f"{100 * float(learned['interval']):.2f}" == interval
        for head, stated in zip(("cosine", "logistic", "ridge-cv"), simple, strict=True):
            assert f"{100 * float(measured[data, task, head]['accuracy']):.2f}" == stated


def test_the_settings_document_is_generated_from_the_settings() -> None:
    assert document("settings.md") == settings_table() + "\n", "run `make docs`"


def test_the_error_table_is_that_of_the_code() -> None:
    listed = {
        code: int(status)
        for status, codes in re.findall(r"^\| (\d{3}) \| ([^|]+) \|", document("errors.md"), re.MULTILINE)
        for code in re.findall(r"`(\w+)`", codes)
    }
    expected = {code.value: status for code, status in STATUS.items()}
    assert listed == expected
