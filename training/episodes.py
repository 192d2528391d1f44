"""A meta-batch: the episodes of one update, and their loss."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from training.augmentation import augment, draw
from training.config import Config
from training.data import sample_episode
from training.data.resident import ResidentImages
from training.distributed import Group
from training.model import MetaModel

# Separates what is drawn for the augmentation from what is drawn for the episodes.
_AUGMENTATION = 1


@dataclass(frozen=True)
class MetaBatch:
    """Episodes of one shape.

    Attributes:
        images: (B, N, k + q, ...) as the data has them, the k support images of each class first.
        shots: k.
    """

    images: Tensor
    shots: int


def draw_batch(
    config: Config, data: ResidentImages, update: int, group: Group | None = None
) -> MetaBatch:
    """This process's share of an update's tasks, augmented.

    The episodes depend on the seed and the update alone: not on the augmentation, not on the
    device, not on how many processes share them.
    """
    group = group or Group()
    settings = config.episodes
    rng = np.random.default_rng((config.seed, update))
    shots = int(rng.integers(settings.shots[0], settings.shots[1] + 1))
    ways = settings.ways[0]
    if settings.ways[1] > ways:
        ways = int(rng.integers(ways, settings.ways[1] + 1))
    per_class = shots + settings.queries
    tasks = []
    for task in range(settings.tasks):
        episode = sample_episode(rng, data.data, ways, shots, settings.queries)
        if task % group.size != group.rank:
            continue
        noise = np.random.default_rng((config.seed, update, _AUGMENTATION, task))
        seed = int(noise.integers(2**63))
        if not tasks:  # what the network itself draws
            torch.manual_seed(seed)
        indices = np.concatenate([episode.support, episode.query], axis=1)
        images = data.gather(np.repeat(episode.classes, per_class), indices.ravel())
        how = draw(noise, len(images), config.augmentation)
        images = augment(images, how, config.augmentation)
        tasks.append(images.unflatten(0, (ways, per_class)))
    return MetaBatch(torch.stack(tasks), shots)


def episode_loss(model: MetaModel, batch: MetaBatch) -> Tensor:
    """Mean query cross-entropy after adaptation, the objective of Algorithm 1."""
    tasks, ways, per_class = batch.images.shape[:3]
    shots, device = batch.shots, batch.images.device
    embeddings = model.embeddings(batch.images.flatten(0, 2)).unflatten(0, (tasks, ways, per_class))
    phi = embeddings[:, :, :shots].flatten(1, 2)  # (B, N k, d)
    query = embeddings[:, :, shots:].flatten(1, 2)  # (B, N q, d)
    labels = torch.arange(ways, device=device)
    Y = functional.one_hot(labels.repeat_interleave(shots), ways).to(phi.dtype)
    W = model.adapt(phi, Y.expand(tasks, -1, -1))
    logits = query @ W.transpose(1, 2)
    targets = labels.repeat_interleave(per_class - shots).repeat(tasks)
    return functional.cross_entropy(
        logits.flatten(0, 1), targets, label_smoothing=model.config.episodes.label_smoothing
    )
