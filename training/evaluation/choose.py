"""Chooses the settings of simple heads on other classes than those on which they are measured."""

from dataclasses import replace

import numpy as np

from comln_serve.bundle.head import Head
from training.data import ImageSet
from training.evaluation.baselines import Baseline
from training.evaluation.evaluate import episode_accuracies
from training.evaluation.tasks import Task

EPISODES = 200

CHOSEN = "chosen on the training classes"
"""How the description of a head says so."""

_IMAGES_PER_CLASS = 40


def thinned(data: ImageSet, task: Task) -> ImageSet:
    """Fewer images of the same classes, without rotated classes: enough for episodes of the task.

    Embedding all images of a large training split would take longer than the choice itself. All
    images are kept if they have groups, because the first images may be a single group.
    """
    if data.groups is not None:
        return replace(data, rotations=1)
    per_class = max(_IMAGES_PER_CLASS, task.range[1] + task.queries)
    kept = [members[:per_class] for members in data.members]
    ends = np.cumsum([len(members) for members in kept])
    members = tuple(np.arange(end - len(part), end) for end, part in zip(ends, kept, strict=True))
    return ImageSet(data.images[np.concatenate(kept)], members, data.names)


def choose(
    baseline: Baseline, head: Head, data: ImageSet, task: Task, seed: int, episodes: int = EPISODES
) -> tuple[float, bool]:
    """The value with the best mean accuracy on `episodes` episodes of embeddings; of equally good ones the smallest.

    Returns:
        The value, and whether it is the first or last of the grid, so that a better one may be outside.
    """
    candidates = baseline.candidates(data.images)
    means = [episode_accuracies(data, baseline.make(head, value), task, episodes, seed).mean() for value in candidates]
    best = int(np.argmax(means))
    return candidates[best], best in {0, len(candidates) - 1}
