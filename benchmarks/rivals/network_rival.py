"""Algorithms that adapt the network itself to the support images, by gradient steps."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from benchmarks.rivals.batch_norm import differentiable_twice
from benchmarks.rivals.rival import Accuracies, Rival
from benchmarks.rivals.tasks import Problem, Task, gather
from training.backbones.backbone import Backbone
from training.data import Episode
from training.data.resident import ResidentImages

Weights = Mapping[str, Tensor]


class Classifier(nn.Module):
    """Conv-4 and a linear layer: images (n, S, S, 3) uint8 -> logits (n, ways)."""

    def __init__(self, problem: Problem, ways: int, *, twice: bool = True) -> None:
        """With random weights; `twice`: for an algorithm that differentiates it twice."""
        super().__init__()
        self.backbone = Backbone(problem.backbone, problem.image_size)
        if twice:
            differentiable_twice(self.backbone)
        self.head = nn.Linear(self.backbone.embedding_size, ways)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, ways)."""
        logits: Tensor = self.head(self.backbone(images))
        return logits


class NetworkRival(Rival):
    """Gradient descent on the support loss, unrolled: the meta-gradient is autograd's.

    Batch norm always takes the statistics of the batch that is classified, as in MAML's reference code: a query is
    classified with the help of the others. `Accuracies.alone` takes those of the support images instead.

    Attributes:
        steps: number of inner steps, in training and in measuring. rate: of these steps.
        first_order: leave the derivative of the inner gradients out.
    """

    def __init__(self, network: nn.Module, *, steps: int, rate: float, first_order: bool = False) -> None:
        super().__init__()
        self.network = network
        self.steps, self.rate, self.first_order = steps, rate, first_order
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 1.0  # the buffers hold the statistics of the last batch alone

    def start(self) -> Weights:
        """The tensors that the inner loop changes, by their names in the network."""
        return dict(self.network.named_parameters())

    def rates(self) -> Mapping[str, Tensor | float]:
        """Step size of each of these tensors."""
        return dict.fromkeys(self.start(), self.rate)

    def support_loss(self, weights: Weights, task: Task) -> Tensor:
        """What the inner loop minimises."""
        return functional.cross_entropy(functional_call(self.network, dict(weights), task.support), task.support_labels)

    def adapt(self, task: Task, *, graph: bool) -> Weights:
        """Weights after the inner steps; with `graph` they can be differentiated in the start."""
        weights, rates = self.start(), self.rates()
        if not graph:
            weights = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
        for _ in range(self.steps):
            loss = self.support_loss(weights, task)
            gradients = torch.autograd.grad(loss, [*weights.values()], create_graph=graph and not self.first_order)
            stepped = {
                name: weight - rates[name] * gradient
                for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
            }
            weights = stepped if graph else {name: weight.detach().requires_grad_() for name, weight in stepped.items()}
        return weights

    def query_loss(self, weights: Weights, task: Task) -> Tensor:
        """What is meta-learned to be small."""
        return functional.cross_entropy(functional_call(self.network, dict(weights), task.query), task.query_labels)

    def accumulate(self, tasks: Sequence[Task]) -> float:
        """One task after another: only one task's graph is in memory."""
        self.train()
        total = 0.0
        for task in tasks:
            loss = self.query_loss(self.adapt(task, graph=True), task)
            (loss / len(tasks)).backward()
            total += loss.item() / len(tasks)
        return total

    def accuracies(self, images: ResidentImages, episodes: Sequence[Episode]) -> Accuracies:
        usual, alone = np.empty(len(episodes)), np.empty(len(episodes))
        for number, episode in enumerate(episodes):
            task = gather(images, episode)
            self.train()
            weights = dict(self.adapt(task, graph=False))
            with torch.no_grad():
                usual[number] = self._share_right(weights, task)
                functional_call(self.network, weights, task.support)  # leaves its statistics in the buffers
                self.eval()
                alone[number] = self._share_right(weights, task)
        return Accuracies(usual, alone)

    def _share_right(self, weights: dict[str, Tensor], task: Task) -> float:
        logits = functional_call(self.network, weights, task.query)
        return (logits.argmax(dim=1) == task.query_labels).double().mean().item()
