"""A meta-batch: the episodes of one update, and their loss."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from training.config import Config
from training.config.phases import EpisodeConfig
from training.data import sample_episode
from training.data.resident import ResidentImages
from training.errors import DivergedError
from training.model import MetaModel
from training.runs.augmentation import augment, draw
from training.runs.distributed import ALONE, Group

# Keeps the random numbers of the augmentation apart from those of the episodes.
_AUGMENTATION = 1


@dataclass(frozen=True)
class MetaBatch:
    """Episodes of one shape.

    Attributes:
        images: (B, M + N q, ...) as in the data: the M support examples of each task, class by class,
            then the q query images of each class. All views of a support image are examples.
        shots: (N,) number of support examples of each class, M in total.
    """

    images: Tensor
    shots: tuple[int, ...]


def draw_batch(config: Config, data: Sequence[ResidentImages], update: int, group: Group = ALONE) -> MetaBatch:
    """This process's share of an update's tasks, augmented.

    The episodes depend only on the data, the seed and the update: not on the augmentation, the
    device or the number of processes.

    Args:
        data: one data set or several. Of several, one is drawn for each task, all equally likely.
            The upper end of a range of ways is limited by the classes of the smallest one drawn.
    """
    queries = config.episodes.queries
    rng = np.random.default_rng((config.seed, update))
    sources, shots = _draw_shape(rng, config.episodes, data)
    chosen = np.arange(shots.max()) < shots[:, None]  # (N, k)
    tasks = []
    for task, source in enumerate(sources):
        episode = sample_episode(rng, source.data, len(shots), int(shots.max()), queries)
        if task % group.size != group.rank:
            continue
        noise = np.random.default_rng((config.seed, update, _AUGMENTATION, task))
        seed = int(noise.integers(2**63))
        if not tasks:  # random numbers of the network itself, such as DropBlock's
            torch.manual_seed(seed)
        support = source.gather_views(np.repeat(episode.classes, shots), episode.support[chosen])
        query = source.gather(np.repeat(episode.classes, queries), episode.query.ravel())
        images = torch.cat([support, query])
        how = draw(noise, len(images), config.augmentation)
        tasks.append(augment(images, how, config.augmentation))
    return MetaBatch(torch.stack(tasks), tuple((shots * sources[0].data.views).tolist()))


def _draw_shape(
    rng: np.random.Generator, settings: EpisodeConfig, data: Sequence[ResidentImages]
) -> tuple[list[ResidentImages], NDArray[np.intp]]:
    """The data set of each task, and the shots (N,) of each class, the same in all tasks."""
    least, most = settings.shots
    shots = int(rng.integers(least, most + 1))
    sources = [data[0]] * settings.tasks
    if len(data) > 1:
        sources = [data[number] for number in rng.integers(len(data), size=settings.tasks).tolist()]
    ways, most_ways = settings.ways
    if most_ways > ways:
        most_ways = min(most_ways, *(source.data.n_classes for source in sources))
        ways = int(rng.integers(ways, most_ways + 1))
    if settings.unequal and rng.random() < settings.unequal:
        return sources, rng.integers(least, most + 1, size=ways)
    return sources, np.full(ways, shots)


def episode_loss(model: MetaModel, batch: MetaBatch) -> Tensor:
    """Mean query cross-entropy after adaptation, the objective of Algorithm 1."""
    tasks, images = batch.images.shape[:2]
    ways, M, device = len(batch.shots), sum(batch.shots), batch.images.device
    embeddings = model.embeddings(batch.images.flatten(0, 1)).unflatten(0, (tasks, images))
    if not embeddings.isfinite().all():
        raise DivergedError
    phi, query = embeddings[:, :M], embeddings[:, M:]  # (B, M, d), (B, N q, d)
    labels = torch.arange(ways, device=device)
    of_support = labels.repeat_interleave(torch.tensor(batch.shots, device=device))
    Y = functional.one_hot(of_support, ways).to(phi.dtype)
    W = model.adapt(phi, Y.expand(tasks, -1, -1))
    logits = query @ W.transpose(1, 2) / model.temperature(M, ways)
    targets = labels.repeat_interleave((images - M) // ways).repeat(tasks)
    return functional.cross_entropy(
        logits.flatten(0, 1), targets, label_smoothing=model.config.episodes.label_smoothing
    )
