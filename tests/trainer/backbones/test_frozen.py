"""Frozen backbones: images are embedded once, the head is trained on embeddings, the bundle has the network."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from comln_serve.bundle import load_bundle
from tests.support.commands import Command
from tests.support.graphs import NORMALISATION, SIZE, write_model
from tests.support.tiny import ABOUT, checkpoint_of, tiny_config
from tests.support.training import check_served, colour_classes, save_images
from tests.trainer.backbones.test_torchvision_backbones import IMAGENET, trained
from training.bundles.export import export_bundle, with_backbone
from training.checkpoint import Checkpoint
from training.checkpoint_names import BEST, LAST
from training.commands.subject import open_subject
from training.config import Config, ConfigError
from training.errors import BackboneError, ExportError
from training.model import MetaModel
from training.runs.embedded import embed_once
from training.runs.fit import fit

pytestmark = pytest.mark.slow


def frozen_config(backbone: dict[str, object], start: str = "prototype", size: int = SIZE) -> Config:
    return tiny_config(start, 4, size, backbone=backbone, optimiser={"lr": 0.5, "head_lr": 0.05})


def onnx_config(folder: Path, start: str = "prototype") -> Config:
    path = str(write_model(folder / "model.onnx"))
    keys = {"kind": "onnx", "path": path, "output": "flat", "normalise": "l2"}
    return frozen_config(keys | NORMALISATION, start)


def test_the_model_on_embeddings_shares_parameters_and_state(tmp_path: Path) -> None:
    model = MetaModel(onnx_config(tmp_path))
    learner = model.on_embeddings()
    assert learner.log_T is model.log_T
    assert learner.state_dict().keys() == model.state_dict().keys()
    with pytest.raises(ValueError, match="frozen"):
        MetaModel(tiny_config()).on_embeddings()


@pytest.mark.parametrize("start", ["prototype", "learned", "zero"])
def test_only_the_head_is_learned(tmp_path: Path, start: str) -> None:
    data, settings = colour_classes(size=SIZE), onnx_config(tmp_path, start)
    best = fit(settings, data, data, tmp_path / "run", resume=False)
    model, before = best.restore_model(), MetaModel(settings)
    moved = {key for key, value in model.state_dict().items() if not torch.equal(value, before.state_dict()[key])}
    extra = {"prototype": {"log_alpha"}, "learned": {"W0"}, "zero": set[str]()}
    assert moved == {"log_T"} | extra[start]
    # Resuming the complete run embeds and loads as before, and trains no further.
    again = fit(settings, data, data, tmp_path / "run", resume=True)
    assert again.update == best.update


def test_frozen_torchvision_weights_do_not_change_and_are_exported(tmp_path: Path) -> None:
    """The checkpoint and the bundle do not need the weights file."""
    path = tmp_path / "weights.pt"
    torch.save(trained("resnet18", 10).state_dict(), path)
    keys = {"kind": "torchvision", "architecture": "resnet18", "weights": str(path)}
    settings = frozen_config(keys | {"frozen": True, "normalise": "l2"} | IMAGENET, size=32)
    data = colour_classes(size=32)
    fit(settings, data, data, tmp_path / "run", resume=False)
    expected = MetaModel(settings).embed(data.images)
    path.unlink()
    checkpoint = Checkpoint.load(tmp_path / "run" / BEST)
    export_bundle(checkpoint, tmp_path / "bundle", ABOUT)
    bundle = load_bundle(tmp_path / "bundle")
    assert bundle.manifest.training.config["backbone"]["weights"] == "weights.pt"
    check_served(tmp_path / "bundle", data.images, expected)


EXPORT = ["--description", "Colours.", "--data-description", "Eight.", "--licence", "CC0-1.0"]


def test_an_onnx_model_from_recipe_to_bundle(
    tmp_path: Path, comln_train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path relative to the recipe; run and bundle have equal accuracies; a moved file can be given, or is named."""
    images = save_images(colour_classes(size=SIZE), tmp_path / "images")
    tree = onnx_config(tmp_path).model_dump(mode="json", exclude_defaults=True)
    tree["backbone"] |= {"kind": "onnx", "path": "model.onnx"}
    recipe, run, bundle = tmp_path / "recipe.yaml", tmp_path / "run", tmp_path / "bundle"
    recipe.write_text(json.dumps(tree))
    comln_train("fit", recipe, "--data", images, "--out", run)

    moved = tmp_path / "elsewhere" / "model.onnx"
    moved.parent.mkdir()
    (tmp_path / "model.onnx").rename(moved)
    export = ["export", run, "--to", bundle, *EXPORT]
    assert f"{tmp_path / 'model.onnx'}: no such file" in comln_train.refused(*export)
    said = comln_train.refused(*export, "--set", "backbone.mean=[0, 0, 0]")
    assert "backbone.mean cannot be changed after training" in said
    monkeypatch.chdir(moved.parent)
    comln_train(*export, "--set", "backbone.path=model.onnx")
    config = load_bundle(bundle).manifest.training.config
    assert config["backbone"]["path"] == "model.onnx"
    assert str(tmp_path) not in (bundle / "bundle.json").read_text()

    moved.rename(tmp_path / "model.onnx")
    measure = f"--data {images} --task 4x1 --episodes 10 --queries 3 --format json".split()
    printed = [comln_train("evaluate", folder, *measure) for folder in (run, bundle)]
    figures = [re.findall(r'"mean": ([0-9.]+)', text) for text in printed]
    assert figures[0] == figures[1] != []
    assert "--record needs a bundle" in comln_train.refused("evaluate", run, "--data", images, "--record")


def test_a_run_on_embeddings_gets_its_network_at_export(tmp_path: Path) -> None:
    """The embeddings were computed by the network: the bundle computes the same."""
    images = colour_classes(size=SIZE)
    source = MetaModel(onnx_config(tmp_path))
    keys = {"kind": "onnx", "path": str(tmp_path / "model.onnx"), "output": "flat"}
    raw = MetaModel(frozen_config(keys | NORMALISATION))
    data = embed_once(raw, images)  # LEO publishes them without normalisation
    settings = frozen_config({"kind": "identity", "embedding_size": 6, "normalise": "l2"})
    fit(settings, data, data, tmp_path / "run", resume=False)
    checkpoint = Checkpoint.load(tmp_path / "run" / LAST)

    measured = open_subject(tmp_path / "run")
    with pytest.raises(ConfigError, match="run is a run, whose network is torch's; --provider needs a bundle"):
        open_subject(tmp_path / "run", "openvino")
    np.testing.assert_allclose(measured.embed(data.images), source.embed(images.images), rtol=1e-5, atol=1e-6)
    with pytest.raises(ExportError, match=r"trained on embeddings.*--set backbone\.kind=onnx"):
        export_bundle(checkpoint, tmp_path / "bundle", ABOUT)
    assert not (tmp_path / "bundle").exists()

    path = f"backbone.path={tmp_path / 'model.onnx'}"
    overrides = (
        "backbone.kind=onnx",
        path,
        "backbone.output=flat",
        "backbone.mean=[0.4, 0.5, 0.6]",
        "backbone.std=[0.2, 0.3, 0.4]",
        f"data.preprocessing.image_size={SIZE}",
    )
    export_bundle(with_backbone(checkpoint, overrides), tmp_path / "bundle", ABOUT)
    bundle = load_bundle(tmp_path / "bundle")
    assert bundle.head.horizon == checkpoint.restore_model().head().horizon
    check_served(tmp_path / "bundle", images.images, source.embed(images.images), rtol=1e-4, atol=1e-5)

    wrong = (*overrides, "backbone.output=logits")
    with pytest.raises(BackboneError, match="have 4 numbers"):
        with_backbone(checkpoint, wrong)
    with pytest.raises(ExportError, match=r"head\.start cannot be changed"):
        with_backbone(checkpoint, ("head.start=zero",))


def test_images_are_refused_as_embeddings(tmp_path: Path) -> None:
    settings = frozen_config({"kind": "identity", "embedding_size": 6})
    data = colour_classes(size=SIZE)
    with pytest.raises(BackboneError, match=r"takes float32 embeddings \(n, 6\)"):
        fit(settings, data, data, tmp_path, resume=False)


def test_a_trained_backbone_cannot_be_replaced(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"backbone\.mean cannot be changed.*conv4"):
        with_backbone(checkpoint_of(MetaModel(tiny_config())), ("backbone.mean=[0, 0, 0]",))
