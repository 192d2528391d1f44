"""Training that starts from a bundle's weights."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from comln_serve.bundle import load_bundle
from comln_serve.engine.embedding.backbone import OnnxBackbone
from tests.support.tiny import tiny_config, write_bundle
from tests.support.training import colour_classes
from training.backbones.warm_start import warm_start
from training.checkpoint import Checkpoint
from training.checkpoint_names import LAST
from training.config import Config
from training.config.recipe import override_config
from training.errors import BackboneError
from training.model import MetaModel
from training.runs.fit import fit
from training.runs.validate import validate

pytestmark = pytest.mark.slow


def started(bundle: Path, **changes: object) -> Config:
    return tiny_config(backbone={"warm_start": str(bundle), **changes})


@pytest.fixture
def bundle(models: Path) -> Path:
    return models / "tiny"


READOUT = {"power": 1.4, "blur": 0.15, "maximum": 0.6}
# Its shortcuts stand beside the other convolutions, and a graph may list them in another order.
RESNET12 = {"kind": "resnet12", "channels": 4, "global_pooling": True}


@pytest.mark.parametrize(
    "keys",
    [
        {"mirror": False, "last_relu": True},
        {"mirror": False, "last_relu": False, "readout": READOUT},
        # The graph has two branches, whose shared convolutions batch norm is not folded into.
        {"mirror": True, "last_relu": True, "readout": READOUT},
        {"mirror": True, "last_relu": False},
        RESNET12 | {"mirror": False},
        RESNET12 | {"mirror": True},
    ],
    ids=str,
)
def test_the_network_computes_the_embeddings_of_the_bundle(tmp_path: Path, keys: dict[str, Any]) -> None:
    bundle = tmp_path / "first"
    write_bundle(bundle, tiny_config(backbone=keys))
    images = colour_classes().images
    model = MetaModel(started(bundle, **keys))
    warm_start(model.backbone, bundle, torch.from_numpy(images))
    served = OnnxBackbone(load_bundle(bundle), "cpu").embed(images)
    np.testing.assert_allclose(model.embed(images), served, atol=1e-5)
    assert served.std() > 1e-3
    if "last_relu" in keys:
        assert (served.min() < 0) == (not keys["last_relu"])
        if not keys["mirror"]:  # only the bundle uses the mirror image
            # Also in training mode, since batch norm starts with the statistics of these images.
            model.train()
            with torch.no_grad():
                trained = model.embeddings(torch.from_numpy(images)).numpy()
            np.testing.assert_allclose(trained, served, atol=1e-4)


def test_fit_starts_from_the_bundle(bundle: Path, tmp_path: Path) -> None:
    data = colour_classes()
    images = data.images[::3]
    served = OnnxBackbone(load_bundle(bundle), "cpu").embed(images)

    def distance(config: Config, out: str) -> float:
        still = override_config(config, ("optimiser.lr=1e-9", "optimiser.momentum=0.0"))
        best = fit(still, data, data, tmp_path / out, resume=False)
        assert best.config.backbone.warm_start == config.backbone.warm_start
        features = best.restore_model().embed(images)
        return float(np.abs(features - served).max() / np.abs(served).max())

    # Running statistics change with the few small batches of the run, so the results are near, not equal.
    assert distance(started(bundle), "warm") < 0.3 * distance(tiny_config(), "cold")


def test_a_frozen_network_keeps_the_weights_and_gets_a_new_head(bundle: Path, tmp_path: Path) -> None:
    data = colour_classes()
    config = override_config(started(bundle, frozen=True), ["optimiser.head_lr=0.1"])
    best = fit(config, data, data, tmp_path / "run", resume=False)
    served = OnnxBackbone(load_bundle(bundle), "cpu").embed(data.images)
    np.testing.assert_allclose(best.restore_model().embed(data.images), served, atol=1e-5)
    assert best.restore_model().head().horizon != MetaModel(config).head().horizon


def test_a_resumed_run_has_the_weights_of_its_checkpoint(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle may have gone, or been replaced, even by the run's own result."""
    data = colour_classes()
    config = override_config(started(bundle, frozen=True), ["optimiser.head_lr=0.1"])
    whole = fit(config, data, data, tmp_path / "whole", resume=False)
    seen: list[object] = []

    def interrupted(*arguments: Any) -> Any:
        seen.append(arguments)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return validate(*arguments)

    monkeypatch.setattr("training.runs.run.validate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(config, data, data, tmp_path / "cut", resume=False)
    shutil.rmtree(bundle)
    resumed = fit(config, data, data, tmp_path / "cut", resume=True)
    expected = whole.restore_model().embed(data.images)
    for found in (resumed, Checkpoint.load(tmp_path / "cut" / LAST)):
        np.testing.assert_array_equal(found.restore_model().embed(data.images), expected)
    assert resumed.validation == whole.validation


@pytest.mark.parametrize(
    ("changes", "message"), [({"channels": 16}, "channels 8, not 16"), ({"colour": "grey"}, "colour 'rgb', not 'grey'")]
)
def test_a_bundle_of_another_network_is_refused(bundle: Path, changes: dict[str, object], message: str) -> None:
    model = MetaModel(started(bundle, **changes))
    with pytest.raises(BackboneError, match=message):
        warm_start(model.backbone, bundle, torch.zeros(2, 16, 16, 3, dtype=torch.uint8))


def test_a_missing_bundle_is_named(tmp_path: Path) -> None:
    model = MetaModel(started(tmp_path / "none"))
    with pytest.raises(BackboneError, match="none"):
        warm_start(model.backbone, tmp_path / "none", torch.zeros(2, 16, 16, 3, dtype=torch.uint8))
