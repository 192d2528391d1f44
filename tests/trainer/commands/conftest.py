"""A bundle of the test's own, and images to measure it on."""

import shutil
from pathlib import Path

import pytest

from tests.support.training import colour_folders


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colour_folders(tmp_path_factory.mktemp("images"))


@pytest.fixture
def bundle(models_dir: Path, tmp_path: Path) -> Path:
    """A copy of a bundle, to record in."""
    return Path(shutil.copytree(models_dir / "tiny-prototype", tmp_path / "models" / "mine"))
