"""Small flows and comparisons that the tests of the meta-gradients share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.gradient_error import INPUTS, Task, gradient_size
from training.gradient_flow import Method

METHODS: tuple[Method, ...] = ("adjoint", "forward")
TIGHT = {"rtol": 1e-10, "atol": 1e-10}
both_methods = pytest.mark.parametrize("method", METHODS)


def small_task(M: int = 6, N: int = 3, d: int = 8, T: float = 5.0, lam: float = 0.0, seed: int = 0) -> Task:
    """A mild flow of unequal classes, random weights and soft labels."""
    rng = np.random.default_rng(seed)
    return Task(
        phi=rng.normal(size=(M, d)),
        W0=rng.normal(size=(N, d)) / np.sqrt(d),
        Y=rng.dirichlet(np.ones(N), M),
        T=T,
        lam=lam,
        weights=rng.uniform(0.05, 0.4, M),
        V=rng.normal(size=(N, d)),
    )


def tensors(task: Task, *, grad: bool = True) -> dict[str, Tensor]:
    """Arguments of `gradient_flow` for a task, in float64."""
    values = {name: torch.tensor(getattr(task, name), dtype=torch.float64) for name in INPUTS}
    if grad:
        for value in values.values():
            value.requires_grad_()
    return values | {"Y": torch.from_numpy(task.Y)}


def autograd_gradients(task: Task, adapt: Callable[..., Tensor], **options: Any) -> dict[str, np.ndarray]:
    """Derivatives of <V, adapt(...)> in each of INPUTS by torch's autograd."""
    arguments = tensors(task)
    loss = (adapt(**arguments, **options) * torch.from_numpy(task.V)).sum()
    grads = torch.autograd.grad(loss, [arguments[name] for name in INPUTS], materialize_grads=True)
    return {name: grad.numpy() for name, grad in zip(INPUTS, grads, strict=True)}


def close(actual: Any, expected: Any, tolerance: float) -> None:
    """Largest difference at most `tolerance` of the largest entry."""
    actual, expected = (np.asarray(torch.as_tensor(x).detach()) for x in (actual, expected))
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all()
    assert np.abs(actual - expected).max() <= tolerance * max(np.abs(expected).max(), 1e-300)


def all_close(task: Task, actual: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float) -> None:
    """The gradients of every input differ by at most `tolerance` of their size."""
    for name in INPUTS:
        assert actual[name].shape == expected[name].shape
        difference = float(np.linalg.norm(actual[name] - expected[name]))
        assert difference <= tolerance * gradient_size(task, name, expected[name]), name
