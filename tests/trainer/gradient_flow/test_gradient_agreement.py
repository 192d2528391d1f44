"""Five ways to compute the meta-gradients, every pair of which must agree.

The adjoint, forward sensitivity, autograd through many small steps, finite differences, and SciPy's
integrator on the tangent equation of W itself: the last three share no code with the first two.
"""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.special import softmax
from torch import Tensor

from benchmarks.gradient_error import INPUTS, Task, clustered_task, directional_derivative, gradient_size
from tests.support.numerics import METHODS, TIGHT, all_close, autograd_gradients, small_task

Gradients = dict[str, np.ndarray]
# Name of an input, a unit direction in it, and the size relative to which errors are measured.
Probe = tuple[str, np.ndarray, float]


def probes(task: Task, gradients: Gradients) -> list[Probe]:
    """For a scalar the positive direction; else that of the gradient and a random one.

    A part of g of relative size e that is wrong shows as e / sqrt(size) along a random direction.
    """
    rng, chosen = np.random.default_rng(0), list[Probe]()
    for name in INPUTS:
        g, size = gradients[name], gradient_size(task, name, gradients[name])
        if g.ndim == 0:
            chosen.append((name, np.ones(()), size))
            continue
        random = rng.normal(size=g.shape)
        chosen.append((name, g / np.linalg.norm(g), size))
        chosen.append((name, random / np.linalg.norm(random), size / np.sqrt(g.size)))
    return chosen


def along(gradients: Gradients, probed: list[Probe]) -> np.ndarray:
    return np.array([(gradients[name] * v).sum() for name, v, _ in probed])


def by_finite_differences(task: Task, probed: list[Probe]) -> np.ndarray:
    return np.array([directional_derivative(task, name, v) for name, v, _ in probed])


def by_scipy(task: Task, probed: list[Probe], tolerance: float) -> np.ndarray:
    """W and its derivative along every direction, as one system that DOP853 integrates in W.

        dW/dt = -R^T phi - lam (W - W0),   R = w (softmax(phi W^T) - Y)

    differentiated by the product rule; dW(T)/dT is the right-hand side itself.
    """
    phi, W0, Y, w, lam = task.phi, task.W0, task.Y, task.weights, task.lam

    def directions(name: str) -> np.ndarray:
        zero = np.zeros(np.shape(getattr(task, name)))
        return np.stack([v if kind == name else zero for kind, v, _ in probed])

    dphi, dW0, dw = (directions(name) for name in ("phi", "W0", "weights"))
    dlam = directions("lam")[:, None, None]

    def field(_t: float, flat: np.ndarray) -> np.ndarray:
        state = flat.reshape(-1, *W0.shape)
        W, dW = state[0], state[1:]
        p = softmax(phi @ W.T, axis=1)
        residual = w[:, None] * (p - Y)
        dlogits = dphi @ W.T + phi @ dW.transpose(0, 2, 1)
        dp = p * (dlogits - (p * dlogits).sum(axis=-1, keepdims=True))
        dresidual = dw[:, :, None] * (p - Y) + w[:, None] * dp
        rates = np.empty_like(state)
        rates[0] = -residual.T @ phi - lam * (W - W0)
        rates[1:] = -dresidual.transpose(0, 2, 1) @ phi - residual.T @ dphi
        rates[1:] -= dlam * (W - W0) + lam * (dW - dW0)
        return rates.ravel()

    start = np.concatenate([W0[None], dW0]).ravel()
    solution = solve_ivp(field, (0.0, task.T), start, method="DOP853", rtol=tolerance, atol=0.01 * tolerance)
    assert solution.success
    end = solution.y[:, -1]
    rate = field(task.T, end).reshape(-1, *W0.shape)[0]
    tangents = end.reshape(-1, *W0.shape)[1:]
    return np.array(
        [
            (task.V * (rate if name == "T" else tangent)).sum()
            for tangent, (name, _, _) in zip(tangents, probed, strict=True)
        ]
    )


def unrolled(phi: Tensor, W0: Tensor, Y: Tensor, T: Tensor, lam: Tensor, weights: Tensor, steps: int) -> Tensor:
    """W(T) by equal classical Runge-Kutta steps on W that autograd differentiates itself."""

    def field(W: Tensor) -> Tensor:
        residual = weights[:, None] * (torch.softmax(phi @ W.T, dim=1) - Y)
        return -residual.T @ phi - lam * (W - W0)

    W, h = W0, T / steps
    for _ in range(steps):
        k1 = field(W)
        k2 = field(W + h / 2 * k1)
        k3 = field(W + h / 2 * k2)
        k4 = field(W + h * k3)
        W = W + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return W


def check_pairs(contenders: dict[str, np.ndarray], probed: list[Probe], tolerance: Callable[[str, str], float]) -> None:
    """Every pair of methods agrees along every direction."""
    scales = np.array([scale for _, _, scale in probed])
    for one, other in combinations(contenders, 2):
        errors = np.abs(contenders[one] - contenders[other]) / scales
        worst = int(errors.argmax())
        assert errors[worst] <= tolerance(one, other), (one, other, probed[worst][0])


@pytest.mark.parametrize(("M", "N", "d"), [(1, 2, 3), (5, 2, 9), (6, 3, 8), (6, 4, 3), (8, 3, 3), (9, 3, 20)])
@pytest.mark.parametrize(("T", "lam"), [(0.5, 0.0), (5.0, 0.3), (30.0, 0.0), (30.0, 0.02)])
def test_five_ways_agree_on_mild_flows(M: int, N: int, d: int, T: float, lam: float) -> None:
    """Soft labels and unequal weights; more and fewer examples than features."""
    task = small_task(M, N, d, T, lam, seed=M)
    gradients = {method: task.gradients(method, **TIGHT) for method in METHODS}
    all_close(task, gradients["forward"], gradients["adjoint"], 1e-11)
    probed = probes(task, gradients["adjoint"])
    contenders = {method: along(gradients[method], probed) for method in METHODS}
    contenders["unrolled"] = along(autograd_gradients(task, unrolled, steps=300), probed)
    contenders["differences"] = by_finite_differences(task, probed)
    contenders["scipy"] = by_scipy(task, probed, 1e-12)
    check_pairs(contenders, probed, lambda _one, _other: 1e-6)


@pytest.mark.parametrize(
    ("ways", "shots", "T", "norm2", "offset", "lam", "d"),
    [
        (2, 1, 1e4, 1e4, 3.0, 0.0, 0),
        (3, 2, 1e3, 100.0, 3.0, 0.0, 0),
        (3, 2, 1e4, 1e4, 0.0, 0.0, 0),
        (3, 2, 1e4, 100.0, 3.0, 0.0, 3),
        (3, 2, 30.0, 100.0, 3.0, 0.01, 0),
        (5, 1, 1e4, 1e3, 10.0, 0.0, 0),
        (5, 5, 100.0, 100.0, 3.0, 0.0, 0),
        (5, 5, 100.0, 100.0, 3.0, 0.01, 0),
        (5, 5, 100.0, 100.0, 3.0, 1.0, 0),
        (5, 5, 1e4, 100.0, 0.0, 0.0, 10),
        pytest.param(5, 5, 1e4, 100.0, 10.0, 0.0, 0, marks=pytest.mark.slow),
        (5, 5, 1e4, 1e4, 3.0, 0.0, 0),
        pytest.param(10, 5, 100.0, 100.0, 3.0, 0.0, 0, marks=pytest.mark.slow),
        pytest.param(10, 5, 100.0, 100.0, 0.0, 0.1, 0, marks=pytest.mark.slow),
        (10, 5, 1e4, 1e4, 0.0, 0.0, 20),
    ],
)
def test_four_ways_agree_on_stiff_flows(
    ways: int, shots: int, T: float, norm2: float, offset: float, lam: float, d: int
) -> None:
    """At default tolerances; the two methods differentiate the same steps, hence to rounding."""
    task = clustered_task(ways, shots, T, norm2=norm2, offset=offset, lam=lam, d=d)
    gradients = {method: task.gradients(method) for method in METHODS}
    all_close(task, gradients["forward"], gradients["adjoint"], 1e-11)
    probed = probes(task, gradients["adjoint"])
    contenders = {method: along(gradients[method], probed) for method in METHODS}
    contenders["differences"] = by_finite_differences(task, probed)
    contenders["scipy"] = by_scipy(task, probed, 1e-10)
    references = {"differences", "scipy"}
    check_pairs(contenders, probed, lambda *pair: 1e-6 if set(pair) == references else 1e-4)
