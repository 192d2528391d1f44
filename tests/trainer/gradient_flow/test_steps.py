"""The solvers' steps and their derivatives: Euler is gradient descent, dopri5 is of order five.

The division into chunks affects only the memory.
"""

import gc
import math
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor

from benchmarks.gradient_error import INPUTS, Task, clustered_task
from comln_serve.flow import FlowError, kernels
from tests.support.numerics import TIGHT, all_close, autograd_gradients, both_methods, close, small_task, tensors
from training.flow_steps import Chunk, ReducedProblem, Solver, march, replay
from training.gradient_flow import Method, adjoint, forward, gradient_flow
from training.gradient_flow.adjoint import AdjointMethod, adjoint_sweep
from training.gradient_flow.forward import ForwardMethod

DOPRI5 = Solver("dopri5", None, None, max_steps=10_000, step_size=None)


def euler(step_size: float, max_steps: int = 200_000) -> Solver:
    return Solver("euler", None, None, max_steps=max_steps, step_size=step_size)


def reduced(task: Task) -> ReducedProblem:
    """Algorithm 6 for a task."""
    return ReducedProblem(
        task.phi @ task.phi.T,
        np.ascontiguousarray(task.W0 @ task.phi.T),
        np.ascontiguousarray(task.Y.T),
        task.weights,
        task.T,
        task.lam,
    )


# Euler


def gradient_descent(
    phi: Tensor, W0: Tensor, Y: Tensor, T: Tensor, lam: Tensor, weights: Tensor, step_size: float
) -> Tensor:
    """ANIL's inner loop on W, unrolled for autograd: full steps, and a last one up to T."""
    whole_steps = math.ceil(T.item() / step_size - 1e-9) - 1
    W = W0
    for rate in [*[torch.tensor(step_size, dtype=torch.float64)] * whole_steps, T - whole_steps * step_size]:
        residual = weights[:, None] * (torch.softmax(phi @ W.T, dim=1) - Y)
        W = W - rate * (residual.T @ phi + lam * (W - W0))
    return W


@both_methods
@pytest.mark.parametrize("d", [3, 8])
@pytest.mark.parametrize("lam", [0.0, 0.3])
@pytest.mark.parametrize(
    ("T", "step_size"),
    [(3.0, 0.25), (4.2, 0.3), (3.1, 0.25), (0.2, 0.25), (0.25, 0.25), (6.0, 0.01)],
    ids=["multiple", "rounded multiple", "shorter last", "one short", "one", "600"],
)
def test_euler_is_unrolled_gradient_descent(method: Method, d: int, lam: float, T: float, step_size: float) -> None:
    """ANIL's meta-gradient to rounding, with soft labels, unequal weights and d < M."""
    task = small_task(d=d, T=T, lam=lam)
    options: dict[str, Any] = {"solver": "euler", "step_size": step_size}
    close(
        gradient_flow(**tensors(task), method=method, **options),
        gradient_descent(**tensors(task), step_size=step_size),
        1e-12,
    )
    expected = autograd_gradients(task, gradient_descent, step_size=step_size)
    all_close(task, task.gradients(method, **options), expected, 1e-11)


@both_methods
@pytest.mark.parametrize(
    ("task", "step_size"),
    [
        # One-hot labels of five classes, 200 steps well below the limit of stability.
        (clustered_task(5, 2, 4.0), 0.02),
        # A step multiplies a deviation by 1 - step_size lam = -0.9: a twentieth is left after 63 / lam.
        (small_task(T=63.0, lam=1.0), 1.9),
        # The classes of one step are more rows than the adjoint multiplies at a time.
        (small_task(M=3, N=600, T=1.0, lam=0.1), 0.25),
    ],
    ids=["large embeddings", "flow at rest", "many classes"],
)
def test_euler_is_gradient_descent_on_other_flows(method: Method, task: Task, step_size: float) -> None:
    expected = autograd_gradients(task, gradient_descent, step_size=step_size)
    all_close(task, task.gradients(method, solver="euler", step_size=step_size), expected, 1e-11)


@both_methods
def test_euler_in_a_batch_takes_each_task_to_its_own_horizon(method: Method) -> None:
    tasks = [small_task(T=T, lam=0.1, seed=seed) for seed, T in enumerate([0.0, 0.3, 7.0])]
    batch = {
        name: torch.tensor(np.stack([getattr(task, name) for task in tasks]), requires_grad=True) for name in INPUTS
    }
    Y, V = (torch.tensor(np.stack([getattr(task, name) for task in tasks])) for name in ("Y", "V"))
    (gradient_flow(**batch, Y=Y, method=method, solver="euler", step_size=0.2) * V).sum().backward()
    for name, tensor in batch.items():
        single = [task.gradients(method, solver="euler", step_size=0.2)[name] for task in tasks]
        close(tensor.grad, np.stack(single), 1e-12)


@both_methods
@pytest.mark.parametrize("lam", [0.0, 0.3])
def test_eulers_gradients_tend_to_the_flows_at_order_one(method: Method, lam: float) -> None:
    task = small_task(T=3.0, lam=lam, seed=2)
    limit = task.gradients(method, **TIGHT)
    runs = [task.gradients(method, solver="euler", step_size=3.0 / n) for n in (250, 500, 1000)]
    for name in INPUTS:
        errors = [np.linalg.norm(run[name] - limit[name]) for run in runs]
        for coarse, fine in pairwise(errors):
            assert coarse / fine == pytest.approx(2.0, abs=0.05), name


@both_methods
def test_too_many_euler_steps_are_refused_before_the_first(method: Method) -> None:
    with pytest.raises(FlowError, match=r"takes 11 steps of 0\.1.* larger step_size"):
        gradient_flow(**tensors(small_task(T=1.05)), method=method, solver="euler", step_size=0.1, max_steps=10)


@both_methods
def test_the_last_allowed_euler_step_is_taken(method: Method) -> None:
    task = small_task(T=1.0)
    options: dict[str, Any] = {"method": method, "solver": "euler", "step_size": 0.1}
    value = gradient_flow(**tensors(task), **options, max_steps=10)
    close(value, gradient_flow(**tensors(task), **options), 0.0)


@both_methods
@pytest.mark.parametrize("grad", [True, False])
def test_euler_steps_that_diverge_say_so(method: Method, grad: bool) -> None:
    """step_size lam > 2: every step multiplies a deviation by -49."""
    task = small_task(T=300.0, lam=50.0)
    with pytest.raises(FlowError, match="smaller step_size"):
        gradient_flow(**tensors(task, grad=grad), method=method, solver="euler", step_size=1.0)


@both_methods
def test_more_euler_steps_than_a_float_can_count_are_refused(method: Method) -> None:
    with pytest.raises(FlowError, match="larger step_size"):
        gradient_flow(**tensors(small_task()), method=method, solver="euler", step_size=5e-324)


@both_methods
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "euler"}, "needs a step_size > 0"),
        ({"solver": "euler", "step_size": 0.0}, "needs a step_size > 0"),
        ({"solver": "euler", "step_size": -0.1}, "needs a step_size > 0"),
        ({"solver": "euler", "step_size": math.inf}, "needs a step_size > 0"),
        ({"solver": "euler", "step_size": math.nan}, "needs a step_size > 0"),
        ({"solver": "dopri5", "step_size": 0.1}, "dopri5 chooses its own steps"),
        ({"step_size": 0.1}, "dopri5 chooses its own steps"),
        ({"solver": "rk4"}, '"dopri5" or "euler"'),
    ],
)
def test_invalid_solver_settings_are_refused(method: Method, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gradient_flow(**tensors(small_task()), method=method, **options)


# Order of Dormand-Prince


def sweep(problem: ReducedProblem, chunk: Chunk, g: np.ndarray) -> list[np.ndarray]:
    """Derivatives of <g, s(T)> in K, L0, w and lam along the steps of a chunk."""
    N, M = g.shape
    dK, dL0, dw, dlam = np.zeros((M, M)), np.zeros((N, M)), np.zeros(M), np.zeros(1)
    found = [dK, dL0, dw, dlam]
    of_problem, of_steps = (problem.K, problem.Y, problem.w, problem.lam), (chunk.steps, chunk.X, chunk.P)
    adjoint_sweep(*of_problem, DOPRI5.table, *of_steps, g.copy(), *found)
    return found


@pytest.mark.parametrize("lam", [0.0, 0.3])
def test_equal_dopri5_steps_and_their_derivatives_are_of_order_five(lam: float) -> None:
    """Halving the step divides the errors of s(T) and of every gradient by about 2^5."""
    problem = reduced(small_task(d=4, T=3.0, lam=lam, seed=4))
    start, g = np.zeros_like(problem.L0), np.random.default_rng(0).normal(size=problem.L0.shape)

    def run(count: int) -> list[np.ndarray]:
        chunk = replay(problem, DOPRI5, start, np.full((count, 6), problem.T / count))
        return [chunk.end, *sweep(problem, chunk, g)]

    exact = run(1000)
    errors = np.array(
        [[np.linalg.norm(x - y) for x, y in zip(run(count), exact, strict=True)] for count in (32, 64, 128)]
    )
    orders = np.log2(errors[:-1] / errors[1:])
    assert orders.min() >= 4.5
    assert orders.max() <= 5.6


def test_taking_the_accepted_steps_again_gives_the_same_states() -> None:
    """Equal to rounding: the adjoint stores only the first state of earlier chunks."""
    problem = reduced(clustered_task(3, 2, 1e3))
    (chunk,) = march(problem, DOPRI5, 1000)
    again = replay(problem, DOPRI5, chunk.states[0], chunk.steps)
    for name in ("X", "P", "end"):
        np.testing.assert_allclose(getattr(again, name), getattr(chunk, name), rtol=1e-11, atol=1e-16)


# The step limit


def spectral_radius(problem: ReducedProblem, P: np.ndarray) -> float:
    """Of the flow's Jacobian A K, from its definition, at probabilities P (N, M)."""
    N, M = P.shape
    A = np.zeros((M, N, M, N))
    for m, (p, w) in enumerate(zip(P.T, problem.w, strict=True)):
        A[m, :, m] = w * (np.diag(p) - np.outer(p, p))
    size = M * N
    return np.abs(np.linalg.eigvals(A.reshape(size, size) @ np.kron(problem.K, np.eye(N)))).max()


@pytest.mark.parametrize("offset", [0.0, 3.0, 10.0])
@pytest.mark.parametrize("lam", [0.0, 0.1])
@pytest.mark.parametrize("tolerance", [1e-4, 1e-6])
def test_no_step_is_longer_than_derivatives_allow(offset: float, lam: float, tolerance: float) -> None:
    """Also where the power iteration is skipped: h (rho + lam) <= 3, up to its own error.

    h is the step in flow time at the rate of its start.
    """
    problem = reduced(clustered_task(3, 3, 1e4, offset=offset, lam=lam))
    solver = Solver("dopri5", tolerance, tolerance, max_steps=10_000, step_size=None)
    (chunk,) = march(problem, solver, 10_000)
    products = [h[0] * (spectral_radius(problem, P[0]) + lam) for h, P in zip(chunk.steps, chunk.P, strict=True)]
    assert max(products) <= 3.2
    if offset == 10.0:
        assert max(products) >= 2.8


def test_the_bound_of_the_spectral_radius_holds() -> None:
    rng = np.random.default_rng(0)
    for sharpness in (0.1, 1.0, 10.0):
        for M, N in ((1, 2), (6, 3), (4, 7)):
            problem = reduced(small_task(M, N))
            P = softmax(sharpness * rng.normal(size=(N, M)), axis=0)
            bound = kernels._radius_bound(P, problem.w, np.abs(problem.K).sum(axis=1), kernels.workspace(N, M))
            radius = spectral_radius(problem, P)
            assert radius * (1 - 1e-12) <= bound <= 20 * radius


# Chunks


@both_methods
@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("options", [{}, {"solver": "euler", "step_size": 0.5}], ids=["dopri5", "euler"])
def test_gradients_do_not_depend_on_the_size_of_chunks(
    method: Method, size: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = replace(small_task(T=60.0, lam=0.05), T=60.3)
    assert sum(len(chunk.steps) for chunk in march(reduced(task), DOPRI5, 64)) > 20
    expected = task.gradients(method, **options)
    monkeypatch.setattr({"adjoint": adjoint, "forward": forward}[method], "_CHUNK", size)
    all_close(task, task.gradients(method, **options), expected, 1e-12)


def test_chunks_have_the_requested_size_and_are_contiguous() -> None:
    problem = reduced(small_task(T=60.0))
    (whole,) = march(problem, DOPRI5, 1000)
    chunks = list(march(problem, DOPRI5, 7))
    assert [len(chunk.steps) for chunk in chunks[:-1]] == [7] * (len(chunks) - 1)
    assert len(chunks) > 3
    for name in ("steps", "X", "P"):
        joined = np.concatenate([getattr(chunk, name) for chunk in chunks])
        np.testing.assert_array_equal(joined, getattr(whole, name))
    np.testing.assert_array_equal(chunks[-1].end, whole.end)


def peak_memory(kind: type[AdjointMethod | ForwardMethod], task: Task, steps: int) -> int:
    """Peak of the memory allocated by NumPy for one gradient with this number of Euler steps."""
    problem, solver = reduced(task), euler(task.T / steps)
    kind(problem, solver).pull_back(problem.L0)
    gc.collect()
    tracemalloc.start()
    try:
        kind(problem, solver).pull_back(problem.L0)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_forward_methods_memory_does_not_grow_with_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one thread, because a worker may free the previous chunk late."""
    monkeypatch.setattr(forward, "thread_map", lambda f, *arguments: list(map(f, *arguments)))
    task = small_task(M=15, N=4, T=5.0)
    few, many = (peak_memory(ForwardMethod, task, steps) for steps in (100, 3000))
    assert many <= 1.05 * few


def test_the_adjoints_memory_grows_with_the_root_of_the_steps() -> None:
    """With a hundred times the steps, storing every state would take a hundred times the memory."""
    few, many = (peak_memory(AdjointMethod, small_task(), steps) for steps in (400, 40_000))
    assert many <= 5 * few
