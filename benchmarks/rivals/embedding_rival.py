"""Algorithms that adapt a head, and nothing else, to the embeddings of the support images."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.rivals.rival import Accuracies, Rival
from benchmarks.rivals.tasks import Problem, Task, one_hot
from training.backbones.backbone import Backbone
from training.data import Episode
from training.data.resident import ResidentImages

_AT_ONCE = 256  # images embedded at a time when measuring


class EmbeddingRival(Rival):
    """Conv-4, and a head for each task.

    Batch norm takes the statistics of all images of an update in training, and the running ones afterwards, as
    `comln-train` does: no query is classified with the help of others.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        backbone = Backbone(problem.backbone, problem.image_size)
        self.backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @abstractmethod
    def logits(self, phi: Tensor, Y: Tensor, query: Tensor) -> Tensor:
        """Logits (Q, N) of query embeddings (Q, d), given support embeddings phi (M, d) and one-hot labels Y (M, N)."""

    def accumulate(self, tasks: Sequence[Task]) -> float:
        self.train()
        images = [part for task in tasks for part in (task.support, task.query)]
        parts = iter(self.backbone(torch.cat(images)).split([len(part) for part in images]))
        losses: list[Tensor] = []
        for task in tasks:
            phi, query = next(parts), next(parts)
            logits = self.logits(phi, one_hot(task.support_labels, phi), query)
            losses.append(functional.cross_entropy(logits, task.query_labels))
        loss = torch.stack(losses).mean()
        loss.backward()
        return loss.item()

    @torch.no_grad()
    def accuracies(self, images: ResidentImages, episodes: Sequence[Episode]) -> Accuracies:
        self.eval()
        pixels = images.pixels
        if images.data.rotations > 1:
            raise ValueError("measured on classes as they are, without rotated ones")
        embeddings = torch.cat([self.backbone(pixels[i : i + _AT_ONCE]) for i in range(0, len(pixels), _AT_ONCE)])
        found = np.empty(len(episodes))
        for number, episode in enumerate(episodes):
            support, query = (torch.from_numpy(rows) for rows in (episode.support, episode.query))
            task = Task(embeddings[support.flatten()], embeddings[query.flatten()], len(episode.classes))
            logits = self.logits(task.support, one_hot(task.support_labels, embeddings), task.query)
            found[number] = (logits.argmax(dim=1) == task.query_labels).double().mean().item()
        return Accuracies(found, found)
