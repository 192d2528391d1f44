"""What the README prints works as printed; what the documents list is what the code has."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from comln_serve.api.errors import STATUS
from comln_serve.configuration.settings import settings_table
from tests.support.live import live_server
from tests.support.paths import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
MODELS = REPOSITORY / "models"
DOCUMENTS = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
    REPOSITORY / "examples" / "README.md",
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_curl_commands_work_as_printed(tmp_path: Path) -> None:
    commands = [block for block in blocks("bash") if "curl" in block]
    assert len(commands) == 3
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
    adapted, predicted, by_json = answers
    assert [item["label"] for item in adapted["classes"]] == ["keble", "oriya", "tengwar"]
    assert [item["examples"] for item in adapted["classes"]] == [2, 2, 2]
    # The answer the README shows, but for the id and the timings.
    (shown,) = map(json.loads, blocks("json"))
    assert predicted.keys() == shown.keys()
    assert predicted["classifier"] == adapted["id"]
    for found, printed in zip(predicted["predictions"], shown["predictions"], strict=True):
        assert found["label"] == printed["label"]
        assert found["probability"] == pytest.approx(printed["probability"], abs=1e-3)
    assert len(by_json["predictions"]) == 1


def test_python_block_runs() -> None:
    # tests/client runs the client's block, which needs a server.
    (block,) = [block for block in blocks("python") if "comln_serve.client" not in block]
    scope: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), scope)
    for name in ("phi", "T"):
        assert getattr(scope[name], "grad") is not None  # noqa: B009


def test_quoted_accuracies_are_those_of_the_manifests() -> None:
    rows = re.findall(
        r"^\| `([\w-]+)` \| (\w+) \| (\d+)-way (\d+)-shot \| ([\d.]+) \+- ([\d.]+) \|$", README, re.MULTILINE
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


def test_the_settings_document_is_generated_from_the_settings() -> None:
    document = (REPOSITORY / "docs" / "settings.md").read_text(encoding="utf-8")
    assert document == settings_table() + "\n", "run `make docs`"


def test_the_error_table_is_that_of_the_code() -> None:
    document = (REPOSITORY / "docs" / "serving.md").read_text(encoding="utf-8")
    listed = {
        code: int(status)
        for status, codes in re.findall(r"^\| (\d{3}) \| ([^|]+) \|", document, re.MULTILINE)
        for code in re.findall(r"`(\w+)`", codes)
    }
    expected = {code.value: status for code, status in STATUS.items()}
    assert listed == expected


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            assert (path.parent / target).exists(), target
