"""`comln models reload`, and what is said of classifiers of models that are not served any more."""

import json
import re
import shutil
from pathlib import Path

import httpx2
import pytest
from fastapi.testclient import TestClient

from comln_serve.configuration.settings import Settings
from tests.client.pictures import class_folder
from tests.client.wires import Run, Wire
from tests.support.bundles import break_backbone, edit_manifest


@pytest.fixture
def settings(settings: Settings, models: Path) -> Settings:
    """Of a server with bundles of the test's own."""
    return settings.model_copy(update={"models_dir": models, "default_model": None})


def test_models_are_reloaded(run: Run, settings: Settings) -> None:
    assert settings.models_dir is not None
    (settings.models_dir / "tiny-learned").rename(settings.models_dir / "another")
    edit_manifest(settings.models_dir / "tiny", lambda content: content.update(description="Another."))
    assert run("models", "reload").stdout.splitlines() == [
        "added: another",
        "replaced: tiny",
        "removed: tiny-learned",
        "unchanged: tiny-prototype",
        "default: another",
    ]
    assert json.loads(run("models", "reload", "--json").stdout)["unchanged"] == ["another", "tiny", "tiny-prototype"]
    break_backbone(settings.models_dir / "another")
    refused = run("models", "reload")
    assert (refused.exit_code, "cannot_reload" in refused.stderr) == (1, True)


def test_classifiers_whose_model_is_another_now_are_marked(run: Run, settings: Settings, tmp_path: Path) -> None:
    """Before predicting fails, or probabilities mean something else."""
    assert settings.models_dir is not None
    photos = class_folder(tmp_path / "photos")
    for name in ("tiny", "tiny-prototype"):
        assert run("adapt", photos, "--name", name, "--model", name).exit_code == 0
    assert "(" not in "".join(model_of(line) for line in run("classifiers", "ls").stdout.splitlines()[1:])
    assert run("classifiers", "show", "tiny").stderr == ""
    shutil.rmtree(settings.models_dir / "tiny-prototype")
    edit_manifest(settings.models_dir / "tiny", lambda content: content["head"].update(regularisation=0.01))
    assert run("models", "reload").exit_code == 0
    listed = run("classifiers", "ls")
    assert [model_of(line) for line in listed.stdout.splitlines()[1:]] == [
        "tiny-prototype (not served)",
        "tiny (earlier head)",
    ]
    assert "its model tiny-prototype is not served here" in run("classifiers", "show", "tiny-prototype").stderr
    assert "comln classifiers adapt tiny@1 adapts it again" in run("classifiers", "show", "tiny").stderr
    assert run("classifiers", "show", "tiny", "--json").stderr == ""
    assert run("classifiers", "adapt", "tiny").exit_code == 0
    assert run("classifiers", "show", "tiny").stderr == ""
    assert model_of(run("classifiers", "ls").stdout.splitlines()[1]) == "tiny"
    edit_manifest(settings.models_dir / "tiny", lambda content: content["preprocessing"].update(resize="stretch"))
    assert run("models", "reload").exit_code == 0
    assert model_of(run("classifiers", "ls").stdout.splitlines()[1]) == "tiny (another network)"
    assert "adapt to its images again (comln adapt)" in run("classifiers", "show", "tiny").stderr
    assert "(model_changed) With this command: comln adapt" in run("predict", photos, "--classifier", "tiny").stderr


def test_classifiers_of_another_network_are_marked(run: Run, line: Wire, client: TestClient, tmp_path: Path) -> None:
    """They cannot predict, and adapting again without images cannot help: another head says nothing then."""
    assert run("adapt", class_folder(tmp_path / "photos"), "--name", "shop").exit_code == 0
    stored = client.get("/classifiers/shop").json()
    models = client.get("/models").json()["models"]
    hashes: dict[str, tuple[str | None, str | None]] = {}

    def answer(request: httpx2.Request) -> httpx2.Response | None:
        one = {**stored, "embedder_sha256": hashes["classifier"][0], "head_sha256": hashes["classifier"][1]}
        served = {"embedder_sha256": hashes["model"][0], "head_sha256": hashes["model"][1]}
        answers = {
            "/models": {"models": [{**model, **served} for model in models]},
            "/classifiers": {"classifiers": [one], "next": None},
            "/classifiers/shop": one,
        }
        return httpx2.Response(200, json=answers[request.url.path])

    line.before = answer
    for of_classifier, of_model, mark, said in (
        (("a", "h"), ("b", "h"), " (another network)", "adapt to its images again (comln adapt)"),
        (("a", "g"), ("b", "h"), " (another network)", "adapt to its images again (comln adapt)"),
        (("a", "g"), ("a", "h"), " (earlier head)", "comln classifiers adapt shop@1 adapts it again"),
        (("a", "h"), ("a", "h"), "", ""),
        (("a", None), ("a", "h"), "", ""),  # stored before there were hashes of heads
    ):
        hashes.update(classifier=of_classifier, model=of_model)
        assert model_of(run("classifiers", "ls").stdout.splitlines()[1]) == f"{stored['model']}{mark}"
        shown = run("classifiers", "show", "shop").stderr
        assert (said in shown) if said else (shown == "")
        assert ("comln classifiers adapt" in shown) == (mark == " (earlier head)")


def model_of(line: str) -> str:
    """The column MODEL of a line of `comln classifiers ls`."""
    return re.split(r" {2,}", line)[-3]


def test_a_list_of_no_classifiers_says_so(run: Run) -> None:
    result = run("classifiers", "ls", "--name", "shpo", "--model", "tiny")
    assert (result.exit_code, result.stderr) == (0, "there is no classifier with --name shpo, --model tiny\n")
    assert run("classifiers", "ls").stderr == "there is no classifier\n"
    assert json.loads(run("classifiers", "ls", "--json").stdout) == {"classifiers": []}
