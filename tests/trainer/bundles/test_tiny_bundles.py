"""The bundles in tests/bundles are what the exporter makes."""

from pathlib import Path

import numpy as np
import pytest

from comln_serve.bundle import load_bundle
from comln_serve.engine.embedding.backbone import OnnxBackbone
from tests.support.tiny import BUNDLES, tiny_config, write_bundle

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", BUNDLES)
def test_committed_bundles_are_what_the_exporter_makes(models_dir: Path, tmp_path: Path, name: str) -> None:
    """Otherwise run `python -m tests.support.tiny`."""
    write_bundle(tmp_path / name, tiny_config(BUNDLES[name]))
    found, made = load_bundle(models_dir / name), load_bundle(tmp_path / name)
    changing = {"created", "files", "training"}
    assert found.manifest.model_dump(exclude=changing) == made.manifest.model_dump(exclude=changing)
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    np.testing.assert_allclose(
        OnnxBackbone(found, "cpu").embed(images), OnnxBackbone(made, "cpu").embed(images), atol=1e-5
    )
    phi = np.random.default_rng(1).normal(size=(10, 8))
    classes = np.arange(10) % 5
    np.testing.assert_allclose(found.head.adapt(phi, classes, 5).W, made.head.adapt(phi, classes, 5).W, atol=1e-6)
