"""Forward sensitivity on torchdiffeq's solvers."""

from typing import Any, get_args

import numpy as np
import pytest
import torch
from torchdiffeq._impl.odeint import SOLVERS

from benchmarks.gradient_error import INPUTS, Task, clustered_task
from comln_serve.flow import FlowError
from tests.support.numerics import TIGHT, all_close, close, small_task, tensors
from tests.support.programs import python
from training.config.flow import FIXED_STEP, TORCHDIFFEQ, SolverName
from training.gradient_flow import gradient_flow, odeint

NAMES = [name.removeprefix(TORCHDIFFEQ) for name in get_args(SolverName) if name.startswith(TORCHDIFFEQ)]
# Equal steps: their errors are of the order of each solver. Adams' explicit formulas of high order need short ones.
STEPS = dict.fromkeys(FIXED_STEP, 0.01) | {"explicit_adams": 0.002}
ERRORS = {"euler": 0.2, "midpoint": 1e-3, "heun2": 1e-3, "heun3": 1e-5, "adaptive_heun": 1e-5}


def options(name: str, **others: Any) -> dict[str, Any]:
    return {"method": "forward", "solver": TORCHDIFFEQ + name} | others


def test_the_names_are_those_of_torchdiffeq() -> None:
    assert sorted(NAMES) == sorted(SOLVERS)
    assert set(NAMES) > FIXED_STEP


@pytest.mark.parametrize("name", NAMES)
def test_every_solver_gives_the_gradients_of_the_adjoint(name: str) -> None:
    """Soft labels, unequal weights, lam > 0; all INPUTS."""
    task = small_task(M=5, T=0.5, lam=0.1)
    tolerance = 1e-6 if name == "adaptive_heun" else 1e-8  # of second order, it would take ten times as many steps
    chosen = {"step_size": STEPS[name]} if name in FIXED_STEP else {"rtol": tolerance, "atol": tolerance}
    found = task.gradients(**options(name, **chosen))
    all_close(task, found, task.gradients("adjoint", **TIGHT), ERRORS.get(name, 1e-6))


@pytest.mark.parametrize(
    ("T", "offset", "lam"), [(100.0, 0.0, 0.0), (100.0, 3.0, 0.0), (20.0, 3.0, 0.1), (1e4, 0.0, 0.0)]
)
def test_gradients_of_stiff_flows_at_the_default_tolerance(T: float, offset: float, lam: float) -> None:
    task = clustered_task(4, 3, T, offset=offset, lam=lam)
    all_close(task, task.gradients(**options("dopri5")), task.gradients("adjoint", rtol=1e-11, atol=1e-11), 1e-5)


def test_euler_gives_the_meta_gradient_of_anil() -> None:
    """The compiled Euler's, which other tests compare with unrolled steps; but for dT, the rate at T."""
    task = small_task(T=1.25, lam=0.05)
    expected = task.gradients("forward", solver="euler", step_size=0.25)
    found = task.gradients(**options("euler", step_size=0.25))
    for name in INPUTS:
        if name != "T":
            close(found[name], expected[name], 1e-10)


def together(tasks: list[Task]) -> dict[str, Any]:
    """Arguments of `gradient_flow` for a batch, with gradients."""
    return {
        name: torch.tensor(np.stack([getattr(task, name) for task in tasks]), requires_grad=name != "Y")
        for name in (*INPUTS, "Y")
    }


def test_a_batch_is_its_single_tasks() -> None:
    """With horizons, strengths and sizes of their own; one of them at rest before T, one with T = 0."""
    tasks = [small_task(T=T, lam=lam, seed=i) for i, (T, lam) in enumerate([(5.0, 0.0), (200.0, 0.5), (0.0, 0.0)])]
    tasks[0].phi[:] *= 3.0
    batch = together(tasks)
    W = gradient_flow(**batch, **options("dopri5"))
    (W * torch.tensor(np.stack([task.V for task in tasks]))).sum().backward()
    for i, task in enumerate(tasks):
        found = {name: batch[name].grad[i].numpy() for name in INPUTS}
        all_close(task, found, task.gradients("adjoint", **TIGHT), 1e-6)


def test_without_grad_s_alone_is_integrated() -> None:
    task = small_task()
    expected = gradient_flow(**tensors(task), **TIGHT)
    with torch.no_grad():
        close(gradient_flow(**tensors(task), **options("dopri8", **TIGHT)), expected, 1e-8)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [("dopri5", {"max_steps": 2}, "raise max_steps"), ("rk4", {"max_steps": 10, "step_size": 0.1}, "raise max_steps")],
)
def test_a_flow_that_does_not_arrive_says_so(name: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(FlowError, match=message):
        gradient_flow(**tensors(small_task(T=1e3)), **options(name, **change))


@pytest.mark.parametrize("times", [1, 2])
def test_a_result_that_is_missing_or_not_finite_is_refused(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SciPy's integrators return no state at T if they gave up."""
    monkeypatch.setattr(odeint, "odeint", lambda _field, start, *_, **__: torch.full((times, *start.shape), torch.nan))
    with pytest.raises(FlowError, match="did not reach a finite state"):
        gradient_flow(**tensors(small_task()), **options("scipy_solver"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "adjoint"}, 'is for method "forward"'),
        ({"solver": "torchdiffeq.rk4"}, "needs a step_size > 0"),
        ({"step_size": 0.1}, "dopri5 chooses its own steps"),
        ({"solver": "torchdiffeq.rk5"}, "or one of torchdiffeq.dopri5, "),
        ({"rtol": 1e-14}, "rtol"),
    ],
)
def test_invalid_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gradient_flow(**tensors(small_task()), **(options("dopri5") | change))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_it_runs_on_the_tensors_own_device() -> None:
    task = small_task(lam=0.1)
    arguments = {k: v.detach().cuda().requires_grad_(k != "Y") for k, v in tensors(task).items()}
    W = gradient_flow(**arguments, **options("dopri5"))
    (W * torch.from_numpy(task.V).cuda()).sum().backward()
    grads = {name: np.asarray(arguments[name].grad.cpu()) for name in INPUTS}  # type: ignore[union-attr]
    all_close(task, grads, task.gradients("adjoint", **TIGHT), 1e-6)


def test_torchdiffeq_is_imported_only_for_its_solvers() -> None:
    script = (
        "import sys, torch, training.cli\n"
        "from training.gradient_flow import gradient_flow\n"
        "phi, Y = torch.eye(2), torch.eye(2)\n"
        "gradient_flow(phi, torch.zeros(2, 2), Y, 1.0)\n"
        "print('torchdiffeq' in sys.modules)\n"
        "gradient_flow(phi, torch.zeros(2, 2), Y, 1.0, method='forward', solver='torchdiffeq.dopri5')\n"
        "print('torchdiffeq' in sys.modules)\n"
    )
    assert python("-c", script).stdout.split() == ["False", "True"]
