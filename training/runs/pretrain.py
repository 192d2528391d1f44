"""Supervised pre-training: a linear layer on the backbone tells all training classes apart.

Episodes then start from an embedding that is already good; what they add is that it suits the
flow. Much cheaper than episodes alone: every image of a batch counts, and none is a support image.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from training.backbones import Backbone
from training.checkpoint import Checkpoint, resume_from
from training.config import Config, PretrainingConfig
from training.data import ImageSet
from training.data.resident import ResidentImages
from training.data.several import Data
from training.model import MetaModel
from training.runs.augmentation import augment, draw
from training.runs.distributed import Group, average_gradients
from training.runs.log import RunLog
from training.runs.optimiser import half_cosine, sgd
from training.runs.validate import validate

PRETRAINING = "pretraining.pt"

# Separates the random numbers of this phase from those of the episodes.
_STREAM = 2


def _part(config: Config) -> dict[str, Any]:
    """What this phase depends on, of the configuration."""
    part = config.model_dump(include={"data", "augmentation", "backbone", "pretraining", "precision", "seed"})
    for key in ("mirror", "normalise", "scale"):  # of embeddings, not of the features trained on
        del part["backbone"][key]
    return part


class SupervisedModel(nn.Module):
    """The model's backbone under a linear layer over the training classes."""

    def __init__(self, model: MetaModel, n_classes: int) -> None:
        super().__init__()
        if not isinstance(model.backbone, Backbone):
            raise TypeError("precomputed embeddings have no backbone to train")
        self.backbone, self._context = model.backbone, model.mixed_precision
        self.linear = nn.Linear(model.backbone.embedding_size, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes) of uint8 images (n, S, S, 3)."""
        # Not the embeddings: on vectors of length 1 or less the layer learns a tenth as fast.
        with self._context():
            features = self.backbone.features(images)
        logits: Tensor = self.linear(features)
        return logits


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

    `out/pretraining.pt` holds the state after every epoch; a finished one is taken over as it is,
    also by a run that changes what comes after it. of a group
    share every batch.

    Raises:
        CheckpointError: `out` holds a run and `resume` is false, or one of another configuration.
    """
    config, group = model.config, group or Group()
    settings = config.pretraining
    if settings is None:
        raise ValueError("the configuration has no section pretraining")
    device = model.log_T.device
    supervised = SupervisedModel(model, images.data.n_classes).to(device)
    optimiser = _optimiser(supervised, settings)
    classes, indices = _all_images(images.data)
    # Batches of at least the configured size: none so small that its statistics are noise.
    per_epoch = max(1, len(classes) // settings.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, half_cosine(settings.epochs * per_epoch, settings.warmup))
    last = resume_from(out / PRETRAINING, config, resume=resume, part=_part)
    start, spent = 0, 0.0
    if last is not None:
        last.restore(supervised, optimiser, schedule)
        start, spent = last.update, last.seconds

    log = RunLog(out, "pretraining", start) if group.leads else None
    began = time.monotonic()
    for epoch in range(start, settings.epochs):
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
            logits = supervised(
                augment(images.gather(classes[mine], indices[mine]), how.of(share), config.augmentation)
            )
            loss = functional.cross_entropy(
                logits, torch.from_numpy(classes[mine]).to(device), label_smoothing=settings.label_smoothing
            )
            optimiser.zero_grad(set_to_none=True)
            # A process with an image less than another counts for less in their average.
            (loss * (group.size * len(mine) / len(picked))).backward()
            average_gradients(supervised.parameters(), group)
            optimiser.step()
            schedule.step()
            losses.append(loss.detach())
        if log is None:
            continue
        done = epoch + 1
        measured = done % settings.validate_every == 0 or done == settings.epochs
        results = validate(model, val) if measured else []
        mean_loss = float(torch.stack(losses).mean())
        checkpoint = Checkpoint(
            config,
            done,
            supervised.state_dict(),
            optimiser.state_dict(),
            schedule.state_dict(),
            0.0,
            spent + time.monotonic() - began,
            [result.record() for result in results],
            command,
            hardware,
        )
        log.record(done, checkpoint.validation, loss=mean_loss, seconds=round(checkpoint.seconds, 1))
        checkpoint.save(out / PRETRAINING)
        tqdm.write(
            f"pre-training, epoch {done} of {settings.epochs}: loss {mean_loss:.3f}"
            + "".join(f"; {result}" for result in results)
        )
    if log is not None:
        log.close()
    return spent + time.monotonic() - began


def _all_images(data: ImageSet) -> tuple[np.ndarray, np.ndarray]:
    """Class and index of every image, rotated classes included: two arrays (n,)."""
    members = [data.members[c // data.rotations] for c in range(data.n_classes)]
    classes = np.repeat(np.arange(data.n_classes), [len(indices) for indices in members])
    return classes, np.concatenate(members)


def _optimiser(supervised: SupervisedModel, config: PretrainingConfig) -> torch.optim.SGD:
    parameters = list(supervised.parameters())
    return sgd(
        [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
            {"params": [p for p in parameters if p.ndim <= 1]},
        ],
        config.lr,
        config.momentum,
    )
