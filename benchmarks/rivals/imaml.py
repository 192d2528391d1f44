"""iMAML (Rajeswaran et al. 2019): the derivative of the inner loop's optimum, whatever led there."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from benchmarks.rivals.network_rival import NetworkRival, Weights
from benchmarks.rivals.tasks import Task


class IMaml(NetworkRival):
    """Gradient descent on the support loss plus strength / 2 times the squared distance to the start.

    At the optimum the meta-gradient is (1 + H / strength)^-1 times the query loss's gradient, with the support loss's
    Hessian H: a few steps of conjugate gradients.
    """

    def __init__(self, network: nn.Module, *, steps: int, rate: float, strength: float, cg_steps: int) -> None:
        super().__init__(network, steps=steps, rate=rate)
        self.strength, self.cg_steps = strength, cg_steps

    def adapt(self, task: Task, *, graph: bool) -> Weights:
        """Weights near the optimum; never with a graph."""
        del graph
        start = {name: weight.detach() for name, weight in self.start().items()}
        weights = start
        for _ in range(self.steps):
            weights = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
            gradients = torch.autograd.grad(self.support_loss(weights, task), [*weights.values()])
            with torch.no_grad():
                weights = {
                    name: weight - self.rate * (gradient + self.strength * (weight - start[name]))
                    for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
                }
        return {name: weight.detach().requires_grad_() for name, weight in weights.items()}

    def accumulate(self, tasks: Sequence[Task]) -> float:
        self.train()
        parameters, total = [*self.network.parameters()], 0.0
        for task in tasks:
            loss, gradient = self.meta_gradient(task)
            parts = (gradient / len(tasks)).split([parameter.numel() for parameter in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                own = part.view_as(parameter)
                parameter.grad = own if parameter.grad is None else parameter.grad + own
            total += loss / len(tasks)
        return total

    def meta_gradient(self, task: Task) -> tuple[float, Tensor]:
        """The query loss after adapting, and the meta-gradient of all weights as one vector."""
        weights = self.adapt(task, graph=False)
        adapted = [*weights.values()]
        loss = self.query_loss(weights, task)
        wanted = _vector(torch.autograd.grad(loss, adapted))
        inner = _vector(torch.autograd.grad(self.support_loss(weights, task), adapted, create_graph=True))

        def product(vector: Tensor) -> Tensor:
            curvature = torch.autograd.grad(inner, adapted, vector, retain_graph=True)
            return vector + _vector(curvature) / self.strength

        return loss.item(), conjugate_gradients(product, wanted, self.cg_steps)


def _vector(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def conjugate_gradients(product: Callable[[Tensor], Tensor], wanted: Tensor, steps: int) -> Tensor:
    """x with A x nearly `wanted` (n,), given v -> A v; stops at a direction along which A is not positive."""
    x, residual = torch.zeros_like(wanted), wanted
    direction, size = residual, residual @ residual
    for _ in range(steps):
        image = product(direction)
        curvature = direction @ image
        if not curvature > 0.0 or not size > 0.0:
            break
        x = x + size / curvature * direction
        residual = residual - size / curvature * image
        size, before = residual @ residual, size
        direction = residual + size / before * direction
    return x
