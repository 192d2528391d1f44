"""Supervised pre-training before the episodes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.stopping import stopped_after_saving
from tests.support.tiny import ABOUT
from tests.support.training import colour_classes, config
from training.bundles.export import export_bundle
from training.checkpoint import Checkpoint
from training.checkpoint_names import LAST
from training.config import Config
from training.data.resident import ResidentImages
from training.errors import CheckpointError
from training.model import MetaModel
from training.runs.fit import fit
from training.runs.log import read_log
from training.runs.pretrain import PRETRAINING, CosineClassifier, SupervisedModel, pretrain
from training.runs.validate import validate

SECTION = {"epochs": 6, "batch_size": 16, "lr": 0.05, "validate_every": 3}


def pretrained(out: Path, settings: Config, *, resume: bool = False) -> MetaModel:
    out.mkdir(exist_ok=True)
    torch.manual_seed(settings.seed)
    model = MetaModel(settings)
    images = ResidentImages(colour_classes(), torch.device("cpu"))
    pretrain(model, images, colour_classes(), out, resume=resume)
    return model


@pytest.mark.parametrize("classifier", ["linear", "cosine"])
def test_it_learns_the_classes_and_says_so(tmp_path: Path, classifier: str) -> None:
    settings = config("prototype", pretraining=SECTION | {"classifier": classifier})
    torch.manual_seed(0)
    before = validate(MetaModel(settings), colour_classes())[0].mean
    model = pretrained(tmp_path, settings)
    log = read_log(tmp_path)
    assert [record["step"] for record in log] == [1, 2, 3, 4, 5, 6]
    assert [bool(record["validation"]) for record in log] == [False, False, True] * 2
    assert log[-1]["loss"] < 0.8 * log[0]["loss"]
    assert validate(model, colour_classes())[0].mean > before


def test_rotated_classes_count_as_classes(tmp_path: Path) -> None:
    data = colour_classes()
    model = MetaModel(config(pretraining={"epochs": 1}))
    images = ResidentImages(replace(data, rotations=4), torch.device("cpu"))
    pretrain(model, images, data, tmp_path, resume=False)
    state = Checkpoint.load(tmp_path / PRETRAINING).model
    assert state["classifier.weight"].shape == (32, model.backbone.embedding_size)


def test_episodes_start_from_the_pretrained_backbone(tmp_path: Path) -> None:
    # The steps are negligible: the run ends with the weights of pre-training.
    optimiser = {"lr": 1e-12, "head_lr": 0.0, "weight_decay": 0.0}
    settings = config(pretraining=SECTION, optimiser=optimiser, updates=2)
    fit(settings, colour_classes(), colour_classes(), tmp_path, resume=False)
    supervised = Checkpoint.load(tmp_path / PRETRAINING).model
    model = Checkpoint.load(tmp_path / LAST).model
    weights = [key for key in model if key.endswith(".weight")]
    assert weights
    for key in weights:
        torch.testing.assert_close(model[key], supervised[key])
    assert [record["phase"] for record in read_log(tmp_path)] == ["pretraining"] * 6 + ["episodes"]


def test_stopped_and_resumed_equals_never_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(pretraining=SECTION, augmentation={"crop_padding": 2, "flip": True})
    whole = pretrained(tmp_path / "whole", settings)
    with stopped_after_saving(monkeypatch, lambda checkpoint, _: checkpoint.update == 2):
        pretrained(tmp_path / "stopped", settings)
    with pytest.raises(CheckpointError, match="--resume"):
        pretrained(tmp_path / "stopped", settings)
    resumed = pretrained(tmp_path / "stopped", settings, resume=True)
    for key, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[key]), key


def test_runs_with_other_episodes_reuse_the_pretraining(tmp_path: Path) -> None:
    data = colour_classes()
    fit(config(pretraining=SECTION, updates=2), data, data, tmp_path, resume=False)
    (tmp_path / LAST).unlink()
    fit(config(pretraining=SECTION, updates=3), data, data, tmp_path, resume=True)
    assert [record["phase"] for record in read_log(tmp_path)].count("pretraining") == 6
    other = config(pretraining=SECTION | {"lr": 0.04}, updates=2)
    (tmp_path / LAST).unlink()
    with pytest.raises(CheckpointError, match="another configuration: pretraining changed"):
        fit(other, data, data, tmp_path, resume=True)


def test_cosines_do_not_depend_on_lengths() -> None:
    layer = CosineClassifier(16, 5)
    features = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    logits = layer(features)
    assert logits.shape == (3, 5)
    assert logits.abs().max() <= layer.factor
    torch.testing.assert_close(layer(7.0 * features), logits)
    own = layer(layer.weight.detach())
    torch.testing.assert_close(own.diagonal(), layer.factor.expand(5))


@pytest.mark.parametrize("change", [{"scale": "sqrt_d"}, {"normalise": "l2"}])
def test_its_linear_layer_gets_features_neither_normalised_nor_scaled(change: dict[str, str]) -> None:
    scaled, plain = MetaModel(config(backbone=change)), MetaModel(config())
    scaled.backbone.load_state_dict(plain.backbone.state_dict())
    images = torch.from_numpy(colour_classes().images[:4])
    one, other = SupervisedModel(scaled, 8), SupervisedModel(plain, 8)
    one.classifier.load_state_dict(other.classifier.state_dict())
    assert torch.equal(one(images)[1], other(images)[1])


def test_bfloat16_trains_with_float32_parameters_and_embeddings(tmp_path: Path) -> None:
    settings = config(pretraining=SECTION, precision="bfloat16")
    best = fit(settings, colour_classes(), colour_classes(), tmp_path, resume=False)
    exact = best.restore_model()
    assert {p.dtype for p in exact.backbone.parameters()} == {torch.float32}
    images = colour_classes().images[:8]
    mixed = MetaModel(settings)
    mixed.load_state_dict(best.model)
    found, expected = mixed.embed(images), exact.embed(images)
    assert found.dtype == expected.dtype == "float32"
    assert found != pytest.approx(expected, rel=1e-6, abs=0)  # mixed precision is really used
    assert found == pytest.approx(expected, rel=0.1, abs=0.1)
    export_bundle(best, tmp_path / "bundle", ABOUT)  # verifies the embeddings in float32
