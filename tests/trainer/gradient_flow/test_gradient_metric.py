"""Meta-gradients of a flow in a whitening metric: against the served solver and differences."""

import numpy as np
import pytest
import torch

from comln_serve.flow import solve_flow
from tests.support.numerics import both_methods, small_task, tensors
from training.gradient_flow import Method, gradient_flow
from training.gradient_flow.metric import whitened

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
STRENGTH = 0.7


@both_methods
@pytest.mark.parametrize(("M", "d"), [(6, 8), (8, 3)])
def test_the_value_is_that_of_the_served_solver(method: Method, M: int, d: int) -> None:
    task = small_task(M, 3, d, 30.0, 0.0)
    arguments = tensors(task)
    psi = whitened(arguments["phi"], arguments["weights"], STRENGTH)
    found = gradient_flow(**arguments, psi=psi, method=method)
    expected = solve_flow(
        task.phi, task.W0, task.Y, 30.0, weights=task.weights, whitening=STRENGTH, rtol=1e-12, atol=1e-12
    ).W
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-6)


@both_methods
@pytest.mark.parametrize("batched", [False, True])
def test_gradients_are_those_of_finite_differences(method: Method, batched: bool) -> None:
    """With respect to the embeddings (through psi, too), the start, T, the weights and the strength."""
    task = small_task(6, 3, 4, 5.0, 0.0)
    arguments = tensors(task)
    Y = arguments["Y"]

    def loss(phi, W0, T, weights, strength):
        if batched:
            phi = phi.expand(2, -1, -1)
        psi = whitened(phi, weights, strength)
        labels = Y.expand(2, -1, -1) if batched else Y
        W = gradient_flow(phi, W0, labels, T, weights=weights, psi=psi, method=method, **TIGHT)
        return (W * torch.linspace(-1, 1, W.numel(), dtype=W.dtype).reshape(W.shape)).sum()

    inputs = [arguments[name].detach().clone().double().requires_grad_() for name in ("phi", "W0", "T", "weights")]
    inputs.append(torch.tensor(STRENGTH, dtype=torch.float64, requires_grad=True))
    assert torch.autograd.gradcheck(loss, inputs, eps=1e-5, atol=1e-6, rtol=1e-5)


def test_psi_needs_the_shape_of_phi() -> None:
    arguments = tensors(small_task(6, 3, 4, 5.0, 0.0))
    with pytest.raises(ValueError, match="psi"):
        gradient_flow(**arguments, psi=arguments["phi"][:, :2])
