"""`comln models reload`."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from comln_serve.configuration.settings import Settings
from tests.support.bundles import break_backbone, edit_manifest


@pytest.fixture
def settings(settings: Settings, models_dir: Path, tmp_path: Path) -> Settings:
    """Of a server with bundles of the test's own."""
    folder = shutil.copytree(models_dir, tmp_path / "models")
    return settings.model_copy(update={"models_dir": folder, "default_model": None})


def test_models_are_reloaded(run: Callable[..., Result], settings: Settings) -> None:
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
