"""Pre-training with a teacher: a bundle whose similarities between images the backbone learns."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from comln_serve.bundle import load_bundle
from comln_serve.engine.embedding.backbone import OnnxBackbone
from tests.support.tiny import tiny_config
from tests.support.training import colour_classes
from training.checkpoint import Checkpoint
from training.config import Config
from training.data.images import fit_pixels
from training.errors import BackboneError
from training.runs.distillation import Teacher
from training.runs.fit import fit
from training.runs.pretrain import PRETRAINING

SECTION = {"epochs": 4, "batch_size": 16, "lr": 0.05, "classifier": "cosine"}


@pytest.fixture
def bundle(models_dir: Path) -> Path:
    return models_dir / "tiny"


def embedded(bundle: Path) -> NDArray[np.float32]:
    loaded = load_bundle(bundle)
    return OnnxBackbone(loaded, "cpu").embed(fit_pixels(colour_classes().images, loaded.manifest.preprocessing))


def with_teacher(teacher: str | None) -> Config:
    return tiny_config(pretraining=SECTION | {"teacher": teacher})


def test_the_loss_is_the_divergence_of_similarities(bundle: Path, tmp_path: Path) -> None:
    teacher = Teacher(bundle, colour_classes(), tmp_path, torch.device("cpu"))
    indices = np.array([0, 5, 9, 13])
    theirs = torch.from_numpy(embedded(bundle)[indices])
    assert teacher.loss(3.0 * theirs, indices).abs() < 1e-6  # lengths do not count
    mine = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
    divergences = []
    for i in range(4):
        others = [j for j in range(4) if j != i]
        p, q = (
            functional.softmax(15 * functional.cosine_similarity(x[i], x[others], dim=1), dim=0) for x in (theirs, mine)
        )
        divergences.append((p * (p / q).log()).sum())
    torch.testing.assert_close(teacher.loss(mine, indices), torch.stack(divergences).mean())


def test_a_student_comes_nearer_to_its_teacher(bundle: Path, tmp_path: Path) -> None:
    data = colour_classes()
    teacher = Teacher(bundle, data, tmp_path, torch.device("cpu"))
    everything = np.arange(len(data.images))

    def distance(name: str, told: str | None) -> float:
        fit(with_teacher(told), data, data, tmp_path / name, resume=False)
        state = Checkpoint.load(tmp_path / name / PRETRAINING)
        backbone = {k.removeprefix("backbone."): v for k, v in state.model.items() if k.startswith("backbone.")}
        model = Checkpoint.load(tmp_path / name / "best.pt").restore_model()
        model.backbone.load_state_dict(backbone)
        return float(teacher.loss(torch.from_numpy(model.embed(data.images)), everything))

    assert distance("told", str(bundle)) < 0.8 * distance("alone", None)


def test_a_resumed_run_does_not_embed_again(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, indices, student = colour_classes(), np.arange(4), torch.eye(4)
    first = Teacher(bundle, data, tmp_path, torch.device("cpu")).loss(student, indices)
    monkeypatch.setattr(OnnxBackbone, "embed", None)
    assert torch.equal(Teacher(bundle, data, tmp_path, torch.device("cpu")).loss(student, indices), first)
    others = replace(data, images=255 - data.images)
    with pytest.raises(TypeError):  # other images are embedded
        Teacher(bundle, others, tmp_path, torch.device("cpu"))


def test_a_teacher_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    data = colour_classes()
    with pytest.raises(BackboneError, match=r"pretraining\.teacher: .*nowhere"):
        fit(with_teacher(str(tmp_path / "nowhere")), data, data, tmp_path / "run", resume=False)
