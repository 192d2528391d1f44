"""Values and meta-gradients on stiff flows, of any input, in every dtype."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor

from benchmarks.gradient_error import INPUTS, clustered_task, gradient_errors
from comln_serve.flow import FlowError, solve_flow
from tests.support.numerics import METHODS, all_close, both_methods, close, small_task, tensors
from training.gradient_flow import Method, compiled, gradient_flow

# Values


@both_methods
@pytest.mark.parametrize(("M", "d"), [(6, 8), (8, 3)])
@pytest.mark.parametrize(("T", "lam"), [(0.0, 0.1), (5.0, 0.0), (40.0, 0.1), (1e4, 1.0)])
def test_the_value_is_that_of_the_served_solver(method: Method, M: int, d: int, T: float, lam: float) -> None:
    task = small_task(M, 3, d, T, lam)
    expected = solve_flow(task.phi, task.W0, task.Y, T, lam=lam, weights=task.weights, rtol=1e-12, atol=1e-12).W
    close(gradient_flow(**tensors(task), method=method), expected, 1e-7)


@both_methods
def test_weights_default_to_the_mean(method: Method) -> None:
    task = replace(small_task(), weights=np.full(6, 1 / 6))
    arguments = tensors(task)
    expected = gradient_flow(**arguments, method=method)
    del arguments["weights"]
    close(gradient_flow(**arguments, method=method), expected, 1e-12)


# Gradients, at default tolerances


@pytest.mark.parametrize(
    ("method", "ways", "shots", "T", "norm2", "offset", "lam"),
    [
        ("adjoint", 5, 5, 1e4, 100.0, 0.0, 0.0),
        ("adjoint", 5, 5, 1e4, 100.0, 3.0, 0.01),
        ("adjoint", 10, 5, 100.0, 100.0, 3.0, 0.01),
        ("adjoint", 20, 5, 10.0, 100.0, 3.0, 0.0),
        ("adjoint", 20, 5, 10.0, 100.0, 0.0, 1.0),
        pytest.param("adjoint", 20, 5, 1e3, 100.0, 3.0, 0.0, marks=pytest.mark.slow),
        ("adjoint", 20, 5, 1e4, 1e4, 0.0, 0.0),
        pytest.param("adjoint", 20, 5, 1e4, 1e4, 0.0, 1.0, marks=pytest.mark.slow),
        pytest.param("adjoint", 20, 5, 1e6, 1e4, 3.0, 0.0, marks=pytest.mark.slow),
        # Its memory and time grow with the fourth power of the number of examples.
        ("forward", 20, 2, 10.0, 100.0, 3.0, 0.0),
        pytest.param("forward", 20, 5, 10.0, 100.0, 3.0, 0.0, marks=pytest.mark.slow),
        pytest.param("forward", 20, 5, 1e3, 100.0, 3.0, 0.0, marks=pytest.mark.slow),
    ],
)
def test_gradients_are_right_on_stiff_flows_of_many_classes(
    method: Method, ways: int, shots: int, T: float, norm2: float, offset: float, lam: float
) -> None:
    """Relative error of all five gradients, also where error control of s alone would give noise.

    Of fewer classes, and of both methods: `test_four_ways_agree_on_stiff_flows`.
    """
    task = clustered_task(ways, shots, T, norm2=norm2, offset=offset, lam=lam)
    errors = gradient_errors(task, task.gradients(method))
    assert max(errors.values()) <= 1e-4, errors


@both_methods
@pytest.mark.parametrize("d", [3, 8])
@pytest.mark.parametrize(("T", "lam"), [(5.0, 0.0), (5.0, 0.3), (1e3, 0.3)])
def test_gradients_of_soft_labels_and_unequal_weights(method: Method, d: int, T: float, lam: float) -> None:
    """Also with more examples than features, and at rest (T far beyond 60 / lam)."""
    task = small_task(d=d, T=T, lam=lam)
    errors = gradient_errors(task, task.gradients(method), directions=3)
    assert max(errors.values()) <= 1e-4, errors


@both_methods
@pytest.mark.parametrize(
    ("T", "options"),
    # T is no multiple of Euler's step: there dT is not continuous.
    [(2.0, {"rtol": 1e-10, "atol": 1e-10}), (2.1, {"solver": "euler", "step_size": 0.25})],
    ids=["dopri5", "euler"],
)
def test_gradcheck(method: Method, T: float, options: dict[str, Any]) -> None:
    """Every entry of the Jacobian in all five inputs, by torch's own checker."""
    arguments = tensors(small_task(3, 2, 2, T, 0.2))

    def adapt(*values: Tensor) -> Tensor:
        named: dict[str, Any] = dict(zip(INPUTS, values, strict=True))
        return gradient_flow(Y=arguments["Y"], method=method, **options, **named)

    assert torch.autograd.gradcheck(adapt, tuple(arguments[name] for name in INPUTS), atol=1e-7, rtol=1e-6)


@both_methods
@pytest.mark.parametrize("solver", [{}, {"solver": "euler", "step_size": 0.1}])
def test_at_time_zero_only_the_start_and_the_horizon_have_a_gradient(method: Method, solver: dict[str, Any]) -> None:
    task = replace(small_task(lam=0.1), T=0.0)
    np.testing.assert_array_equal(gradient_flow(**tensors(task), method=method, **solver).detach().numpy(), task.W0)
    gradients = task.gradients(method, **solver)
    np.testing.assert_array_equal(gradients["W0"], task.V)
    for name in ("phi", "lam", "weights"):
        assert not gradients[name].any()
    residual = task.weights[:, None] * (softmax(task.phi @ task.W0.T, axis=1) - task.Y)
    close(gradients["T"], -(task.V * (residual.T @ task.phi)).sum(), 1e-12)


@both_methods
def test_the_gradient_of_a_prototype_start_reaches_phi_and_alpha(method: Method) -> None:
    """W0 = alpha * class means: both paths of phi, against finite differences of the whole."""
    base = clustered_task(3, 2, 50.0)
    means = base.Y.T / base.Y.sum(axis=0)[:, None]

    def start(phi: np.ndarray, alpha: float) -> float:
        return replace(base, phi=phi, W0=alpha * means @ phi).loss()

    phi = torch.tensor(base.phi, requires_grad=True)
    alpha = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    W0 = alpha * torch.from_numpy(means) @ phi
    W = gradient_flow(phi, W0, torch.from_numpy(base.Y), 50.0, method=method)
    (W * torch.from_numpy(base.V)).sum().backward()

    def difference(f: Callable[[float], float], h: float) -> float:
        return (f(-2 * h) - 8 * f(-h) + 8 * f(h) - f(2 * h)) / (12 * h)

    assert phi.grad is not None
    close(alpha.grad, difference(lambda h: start(base.phi, 0.7 + h), 1e-3), 1e-6)
    v = np.random.default_rng(2).normal(size=base.phi.shape)
    expected = difference(lambda h: start(base.phi + h * v, 0.7), 1e-3)
    assert float((phi.grad * torch.from_numpy(v)).sum()) == pytest.approx(expected, rel=1e-5)


# Which inputs


@both_methods
@pytest.mark.parametrize("name", INPUTS)
def test_an_input_alone_gets_the_gradient_it_gets_among_others(method: Method, name: str) -> None:
    task = small_task(lam=0.1)
    arguments = tensors(task, grad=False)
    arguments[name].requires_grad_()
    (gradient_flow(**arguments, method=method) * torch.from_numpy(task.V)).sum().backward()
    np.testing.assert_array_equal(arguments[name].grad, task.gradients(method)[name])
    assert all(tensor.grad is None for other, tensor in arguments.items() if other != name)


@both_methods
def test_numbers_for_the_horizon_and_lambda_are_constants(method: Method) -> None:
    task = small_task(lam=0.1)
    arguments: dict[str, Any] = tensors(task)
    W = gradient_flow(**(arguments | {"T": task.T, "lam": task.lam}), method=method)
    (W * torch.from_numpy(task.V)).sum().backward()
    expected = task.gradients(method)
    for name in ("phi", "W0", "weights"):
        np.testing.assert_array_equal(arguments[name].grad, expected[name])


@both_methods
@pytest.mark.parametrize("solver", [{}, {"solver": "euler", "step_size": 0.3}])
def test_without_grad_the_value_is_the_same(method: Method, solver: dict[str, Any]) -> None:
    """Bit-equal, over more steps than are in a chunk."""
    arguments = tensors(clustered_task(3, 2, 1e3))
    expected = gradient_flow(**arguments, method=method, **solver)
    assert expected.requires_grad
    detached = {name: tensor.detach() for name, tensor in arguments.items()}
    values = [gradient_flow(**detached, method=method, **solver)]
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            values.append(gradient_flow(**arguments, method=method, **solver))
    for value in values:
        assert not value.requires_grad
        assert torch.equal(value, expected)


@both_methods
def test_without_grad_no_derivative_is_prepared(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation runs under no_grad with parameters that require one."""

    def refuse(*_: Any) -> None:
        raise AssertionError("a derivative was prepared")

    monkeypatch.setitem(compiled.METHODS, method, cast("Any", refuse))
    with torch.no_grad():
        gradient_flow(**tensors(small_task()), method=method)


# Types, errors, devices


@both_methods
def test_float32_in_float32_out_and_gradients_are_the_float64_ones_rounded(method: Method) -> None:
    """dL/dT at a long horizon would be lost in float32 arithmetic."""
    task = clustered_task(3, 2, 1e3)
    task = replace(task, **{name: np.float32(getattr(task, name)) for name in ("phi", "W0", "V")})
    narrow = {
        name: torch.tensor(getattr(task, name), dtype=torch.float32, requires_grad=True) for name in ("phi", "W0", "T")
    }
    W = gradient_flow(**narrow, Y=torch.from_numpy(task.Y), method=method)
    assert W.dtype == torch.float32
    (W * torch.from_numpy(task.V)).sum().backward()
    wide = replace(task, **{name: np.float64(getattr(task, name)) for name in ("phi", "W0", "V")})
    expected = wide.gradients(method)
    for name, tensor in narrow.items():
        assert tensor.grad is not None
        assert tensor.grad.dtype == torch.float32
        close(tensor.grad.double(), expected[name], 1e-6)


@both_methods
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_one_hot_labels_may_be_of_any_dtype(method: Method, dtype: torch.dtype) -> None:
    task = clustered_task(3, 2, 50.0)
    arguments = tensors(task)
    expected = gradient_flow(**arguments, method=method)
    labels = torch.from_numpy(task.Y).to(dtype)
    assert torch.equal(gradient_flow(**(arguments | {"Y": labels}), method=method), expected)


@both_methods
@pytest.mark.parametrize("solver", [{}, {"solver": "euler", "step_size": 0.3}])
def test_a_retained_graph_can_be_differentiated_again(method: Method, solver: dict[str, Any]) -> None:
    """Over more steps than are in a chunk, and with another loss in between."""
    task = clustered_task(3, 2, 1e3)
    arguments = tensors(task)
    inputs = [arguments[name] for name in INPUTS]
    W = gradient_flow(**arguments, method=method, **solver)
    V = torch.from_numpy(task.V)
    first, _, again = (torch.autograd.grad(W, inputs, grad_outputs=g, retain_graph=True) for g in (V, V**2, V))
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)


@both_methods
def test_a_second_derivative_is_refused(method: Method) -> None:
    task = small_task()
    arguments = tensors(task)
    loss = gradient_flow(**arguments, method=method).square().sum()
    (gradient,) = torch.autograd.grad(loss, arguments["phi"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable|twice"):
        gradient.sum().backward()


@pytest.mark.parametrize("method", [*METHODS])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phi": torch.ones(6, 8, dtype=torch.int64)}, "phi must be floating"),
        ({"phi": torch.ones(8)}, "phi"),
        ({"phi": torch.ones(2, 6, 8)}, "phi"),
        ({"phi": torch.ones(6, 7)}, "phi"),
        ({"phi": torch.ones(0, 8), "Y": torch.ones(0, 3)}, "phi"),
        ({"phi": torch.full((6, 8), float("nan"))}, "phi"),
        ({"W0": torch.ones(4, 8)}, "W0"),
        ({"W0": torch.ones(2, 3, 8)}, "W0"),
        ({"W0": torch.full((3, 8), float("inf"))}, "W0"),
        ({"Y": torch.ones(6, 3)}, "Y"),
        ({"Y": torch.ones(5, 3)}, "Y"),
        ({"Y": torch.ones(6, 1), "W0": torch.ones(1, 8)}, "Y"),
        ({"T": -1.0}, "T"),
        ({"T": float("nan")}, "T"),
        ({"T": torch.ones(2)}, "T"),
        ({"lam": -1.0}, "lam"),
        ({"lam": torch.ones(3)}, "lam"),
        ({"weights": torch.ones(5)}, "weights"),
        ({"weights": -torch.ones(6)}, "weights"),
        ({"rtol": 1e-13}, "rtol"),
        ({"atol": 0.0}, "atol"),
    ],
)
def test_invalid_input_is_named(method: Method, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"\b{message}\b"):
        gradient_flow(**(tensors(small_task()) | change), method=method)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match='"adjoint" or "forward"'):
        gradient_flow(**tensors(small_task()), method="euler")


@both_methods
def test_a_flow_that_takes_too_many_steps_says_so(method: Method) -> None:
    with pytest.raises(FlowError, match="raise max_steps"):
        gradient_flow(**tensors(small_task(T=1e3)), method=method, max_steps=2)


@both_methods
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_agrees_with_cpu(method: Method) -> None:
    task = small_task(lam=0.1)
    arguments = {k: v.detach().cuda().requires_grad_() for k, v in tensors(task).items()}
    W = gradient_flow(**arguments, method=method)
    assert W.device.type == "cuda"
    (W * torch.from_numpy(task.V).cuda()).sum().backward()
    grads = {name: arguments[name].grad.cpu().numpy() for name in INPUTS}  # type: ignore[union-attr]
    all_close(task, grads, task.gradients(method), 1e-7)
