"""Other ways to a meta-gradient, by TorchOpt: MAML unrolled, iMAML implicit.

Inner loops are plain gradient descent, as in the papers. `backward` on what a function returns
leaves the meta-gradient in the parameters' `grad`.
"""

# pyright: reportMissingImports=false, reportPrivateImportUsage=false
# Without TorchOpt its base class is unknown, keyword included:
# pyright: reportUntypedBaseClass=false, reportGeneralTypeIssues=false, reportCallIssue=false

from typing import Any

import torch
import torchopt
from torch import Tensor, nn
from torch.nn import functional

# iMAML: strength of the pull to the meta-parameters and steps of conjugate gradient, as in
# Rajeswaran et al. (2019), who use 0.5 to 2 and 5.
IMAML_STRENGTH = 2.0
CG_STEPS = 5


def maml_loss(model: nn.Module, support: Any, query: Any, steps: int, rate: float) -> Tensor:
    """MAML: all weights follow `steps` of gradient descent, unrolled."""
    state = torchopt.extract_state_dict(model)
    optimiser = torchopt.MetaSGD(model, lr=rate)
    for _ in range(steps):
        optimiser.step(functional.cross_entropy(model(support[0]), support[1]))
    loss = functional.cross_entropy(model(query[0]), query[1])
    torchopt.recover_state_dict(model, state)
    return loss


class _Proximal(
    torchopt.nn.ImplicitMetaGradientModule, linear_solve=torchopt.linear_solve.solve_cg(maxiter=CG_STEPS, atol=0.0)
):
    """iMAML's inner problem: support loss and a pull to the meta-parameters."""

    def __init__(self, model: nn.Module, steps: int, rate: float) -> None:
        super().__init__()
        self.meta = model
        self.net = torchopt.module_clone(model, by="deepcopy", detach_buffers=True)
        for own, meta in zip(self.net.parameters(), model.parameters(), strict=True):
            own.data.copy_(meta.data)
            own.requires_grad_()
        self.steps, self.rate = steps, rate

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the adapted network."""
        return self.net(x)

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        """What the inner loop minimises."""
        pairs = zip(self.net.parameters(), self.meta.parameters(), strict=True)
        pull = sum(((own - meta) ** 2).sum() for own, meta in pairs)
        return functional.cross_entropy(self.net(x), y) + 0.5 * IMAML_STRENGTH * pull

    def solve(self, x: Tensor, y: Tensor) -> "_Proximal":
        """Gradient descent without a graph."""
        parameters = tuple(self.net.parameters())
        with torch.enable_grad():
            for _ in range(self.steps):
                gradients = torch.autograd.grad(self.objective(x, y), parameters)
                with torch.no_grad():
                    for parameter, gradient in zip(parameters, gradients, strict=True):
                        parameter.sub_(gradient, alpha=self.rate)
        return self


def imaml_loss(model: nn.Module, support: Any, query: Any, steps: int, rate: float) -> Tensor:
    """iMAML: the implicit derivative at the end of the inner loop, by conjugate gradient."""
    adapted = _Proximal(model, steps, rate).solve(*support)
    return functional.cross_entropy(adapted(query[0]), query[1])
