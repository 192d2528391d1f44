"""Supervised pre-training: the backbone and a linear layer learn to classify all training classes.

The episodes then start from an embedding that is already good, and fit it to the flow. This is much
cheaper than episodes alone, since every image of a batch contributes to the loss.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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
from training.runs.augmentation import Draw, augment, draw
from training.runs.distillation import Teacher
from training.runs.distributed import ALONE, Group, average_gradients
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


class Pretraining(Phase):
    """The backbone under a classifier, learning from the images of all training classes.

    Attributes:
        teacher: None, or set before the first epoch.
    """

    teacher: Teacher | None

    def __init__(self, model: MetaModel, images: ResidentImages, group: Group, command: str) -> None:
        config, settings = model.config, model.config.pretraining
        if settings is None:
            raise ValueError("the configuration has no section pretraining")
        self.model, self.settings, self.images = model, settings, images
        self.device, self.teacher = model.log_T.device, None
        self.supervised = SupervisedModel(model, images.data.n_classes, settings.classifier).to(self.device)
        self.classes, self.indices = _all_images(images.data)
        # Batches have at least the configured size, so that none is too small for batch norm.
        self.batches = max(1, len(self.classes) // settings.batch_size)
        groups = weight_decay_groups(self.supervised.parameters(), settings.weight_decay)
        optimiser = sgd(groups, settings.lr, settings.momentum)
        factor = half_cosine(settings.epochs * self.batches, settings.warmup)
        super().__init__(config, self.supervised, optimiser, factor, command=command, group=group)

    def train_epoch(self, epoch: int) -> float:
        """Train on every image once; returns the mean loss."""
        rng = np.random.default_rng((self.config.seed, _STREAM, epoch))
        torch.manual_seed(int(rng.integers(2**63)))
        self.model.train()
        batches = np.array_split(rng.permutation(len(self.classes)), self.batches)
        disable = None if self.group.leads else True
        losses: list[Tensor] = []
        for picked in tqdm(batches, desc=f"epoch {epoch + 1}", disable=disable, leave=False):
            share = np.arange(self.group.rank, len(picked), self.group.size)
            how = draw(rng, len(picked), self.config.augmentation).of(share)
            loss = self._loss(picked[share], how)
            self.optimiser.zero_grad(set_to_none=True)
            # Processes may differ by one image; each is weighted by its number of images.
            (loss * (self.group.size * len(share) / len(picked))).backward()
            average_gradients(self.supervised.parameters(), self.group)
            self.step()
            losses.append(loss.detach())
        return float(torch.stack(losses).mean())

    def _loss(self, examples: NDArray[np.intp], how: Draw) -> Tensor:
        """Cross-entropy of the classifier, and how far the features are from the teacher's if there is one."""
        classes, indices = self.classes[examples], self.indices[examples]
        shown = augment(self.images.gather(classes, indices), how, self.config.augmentation)
        features, logits = self.supervised(shown)
        targets = torch.from_numpy(classes).to(self.device)
        loss = functional.cross_entropy(logits, targets, label_smoothing=self.settings.label_smoothing)
        return loss if self.teacher is None else loss + self.teacher.loss(features, indices)

    def measure(self, done: int, loss: float, val: Data, out: Path, log: RunLog) -> None:
        """Validate after `done` epochs if it is time to; log, save and print the result."""
        measured = done % self.settings.validate_every == 0 or done == self.settings.epochs
        results = validate(self.model, val) if measured else []
        checkpoint = self.checkpoint(done, results)
        log.record(done, checkpoint.validation, loss=loss, seconds=round(checkpoint.seconds, 1))
        checkpoint.save(out / PRETRAINING)
        tqdm.write(
            f"pre-training, epoch {done} of {self.settings.epochs}: loss {loss:.3f}"
            + "".join(f"; {result}" for result in results)
        )


def pretrain(
    model: MetaModel,
    images: ResidentImages,
    val: Data,
    out: Path,
    *,
    resume: bool,
    command: str = "",
    group: Group = ALONE,
) -> float:
    """Train `model.backbone` for the configured epochs; returns the seconds it took.

    `out/pretraining.pt` holds the state after every epoch. A finished pre-training is reused, also
    by a run whose later phase is configured differently. The processes of a group share every batch.
    """
    phase = Pretraining(model, images, group, command)
    last = resume_from(out / PRETRAINING, model.config, resume=resume, part=_part)
    if last is not None:
        phase.restore(last)
    settings = phase.settings
    if settings.teacher is not None and phase.done < settings.epochs:
        phase.teacher = Teacher(Path(settings.teacher), images.data, out, phase.device)
    log = RunLog(out, "pretraining", phase.done) if group.leads else None
    for epoch in range(phase.done, settings.epochs):
        loss = phase.train_epoch(epoch)
        if not math.isfinite(loss):
            raise DivergedError
        if log is not None:
            phase.measure(epoch + 1, loss, val, out, log)
    if log is not None:
        log.close()
    return phase.seconds


def _all_images(data: ImageSet) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Class and image index of every training example, rotated classes included: two arrays (n,)."""
    members = [data.members[c // data.rotations] for c in range(data.n_classes)]
    classes = np.repeat(np.arange(data.n_classes), [len(indices) for indices in members])
    return classes, np.concatenate(members)
