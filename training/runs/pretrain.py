"""Supervised pre-training: the backbone and a linear layer learn to classify all training classes.

The episodes then start from an embedding that is already good, and fit it to the flow. This is much
cheaper than episodes alone, since every image of a batch contributes to the loss.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from training.backbones.backbone import Backbone
from training.checkpoint import resume_from
from training.checkpoint_names import PRETRAINING
from training.config import Config
from training.data import ImageSet
from training.data.resident import ResidentImages
from training.data.several import Data
from training.errors import DivergedError
from training.model import MetaModel
from training.runs.augmentation import augment, draw
from training.runs.distillation import Teacher
from training.runs.distributed import Group, average_gradients
from training.runs.log import RunLog
from training.runs.optimiser import half_cosine, sgd, weight_decay_groups
from training.runs.phase import Phase
from training.runs.validate import validate

# Keeps the random numbers of this phase apart from those of the episodes.
_STREAM = 2


def _part(config: Config) -> dict[str, Any]:
    """The part of the configuration that this phase depends on."""
    part = config.model_dump(include={"data", "augmentation", "backbone", "pretraining", "precision", "seed"})
    for key in ("mirror", "normalise", "scale"):  # they change embeddings, not the features trained on
        del part["backbone"][key]
    return part


class CosineClassifier(nn.Module):
    """Logits (n, classes) of features (n, d): a learned factor times their cosines with the classes' weights."""

    def __init__(self, size: int, n_classes: int) -> None:
        super().__init__()
        # About length 1: the gradient of a cosine falls as the square of the length, so long ones hardly learn.
        self.weight = nn.Parameter(torch.randn(n_classes, size) / size**0.5)
        self.factor = nn.Parameter(torch.tensor(10.0))

    def forward(self, features: Tensor) -> Tensor:
        cosines = functional.normalize(features, dim=1) @ functional.normalize(self.weight, dim=1).T
        return self.factor * cosines


class SupervisedModel(nn.Module):
    """The model's backbone under a classifier, "linear" or "cosine", over the training classes."""

    def __init__(self, model: MetaModel, n_classes: int, classifier: str = "linear") -> None:
        super().__init__()
        if not isinstance(model.backbone, Backbone):
            raise TypeError("precomputed embeddings have no backbone to train")
        self.backbone, self._context = model.backbone, model.mixed_precision
        kind = CosineClassifier if classifier == "cosine" else nn.Linear
        self.classifier = kind(model.backbone.embedding_size, n_classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features (n, d) and logits (n, classes) of uint8 images (n, S, S, 3)."""
        # Features, not embeddings: on vectors of length 1 or less a linear layer learns ten times slower.
        with self._context():
            features = self.backbone.features(images)
        return features, self.classifier(features)


def pretrain(
    model: MetaModel,
    images: ResidentImages,
    val: Data,
    out: Path,
    *,
    resume: bool,
    command: str = "",
    hardware: str = "",
    group: Group | None = None,
) -> float:
    """Train `model.backbone` for the configured epochs; returns the seconds it took.

    `out/pretraining.pt` holds the state after every epoch. A finished pre-training is reused, also
    by a run whose later phase is configured differently. The processes of a group share every batch.

    Raises:
        BackboneError: the teacher is not a usable bundle.
        CheckpointError: `out` holds a run and `resume` is false, or one of another configuration.
        DivergedError: the loss, or an embedding, is not finite.
    """
    config, group = model.config, group or Group()
    settings = config.pretraining
    if settings is None:
        raise ValueError("the configuration has no section pretraining")
    device = model.log_T.device
    supervised = SupervisedModel(model, images.data.n_classes, settings.classifier).to(device)
    classes, indices = _all_images(images.data)
    # Batches have at least the configured size, so that none is too small for batch norm.
    per_epoch = max(1, len(classes) // settings.batch_size)
    optimiser = sgd(weight_decay_groups(supervised.parameters(), settings.weight_decay), settings.lr, settings.momentum)
    factor = half_cosine(settings.epochs * per_epoch, settings.warmup)
    phase = Phase(config, supervised, optimiser, factor, command=command, hardware=hardware)
    last = resume_from(out / PRETRAINING, config, resume=resume, part=_part)
    if last is not None:
        phase.restore(last)
    teacher = None
    if settings.teacher is not None and phase.done < settings.epochs:
        teacher = Teacher(Path(settings.teacher), images.data, out, device)

    log = RunLog(out, "pretraining", phase.done) if group.leads else None
    for epoch in range(phase.done, settings.epochs):
        rng = np.random.default_rng((config.seed, _STREAM, epoch))
        torch.manual_seed(int(rng.integers(2**63)))
        losses: list[Tensor] = []
        model.train()
        for picked in tqdm(
            np.array_split(rng.permutation(len(classes)), per_epoch),
            desc=f"epoch {epoch + 1}",
            disable=None if group.leads else True,
            leave=False,
        ):
            how = draw(rng, len(picked), config.augmentation)
            share = np.arange(group.rank, len(picked), group.size)
            mine = picked[share]
            features, logits = supervised(
                augment(images.gather(classes[mine], indices[mine]), how.of(share), config.augmentation)
            )
            loss = functional.cross_entropy(
                logits, torch.from_numpy(classes[mine]).to(device), label_smoothing=settings.label_smoothing
            )
            if teacher is not None:
                loss = loss + teacher.loss(features, indices[mine])
            optimiser.zero_grad(set_to_none=True)
            # Processes may differ by one image; each is weighted by its number of images.
            (loss * (group.size * len(mine) / len(picked))).backward()
            average_gradients(supervised.parameters(), group)
            phase.step()
            losses.append(loss.detach())
        mean_loss = float(torch.stack(losses).mean())
        if not math.isfinite(mean_loss):
            raise DivergedError
        if log is None:
            continue
        done = epoch + 1
        measured = done % settings.validate_every == 0 or done == settings.epochs
        results = validate(model, val) if measured else []
        checkpoint = phase.checkpoint(done, results)
        log.record(done, checkpoint.validation, loss=mean_loss, seconds=round(checkpoint.seconds, 1))
        checkpoint.save(out / PRETRAINING)
        tqdm.write(
            f"pre-training, epoch {done} of {settings.epochs}: loss {mean_loss:.3f}"
            + "".join(f"; {result}" for result in results)
        )
    if log is not None:
        log.close()
    return phase.seconds


def _all_images(data: ImageSet) -> tuple[np.ndarray, np.ndarray]:
    """Class and image index of every training example, rotated classes included: two arrays (n,)."""
    members = [data.members[c // data.rotations] for c in range(data.n_classes)]
    classes = np.repeat(np.arange(data.n_classes), [len(indices) for indices in members])
    return classes, np.concatenate(members)
