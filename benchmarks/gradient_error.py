"""Errors of the meta-gradients on stiff flows, against finite differences of the tight flow.

    python -m benchmarks.gradient_error            adjoint; forward up to 10 ways
    python -m benchmarks.gradient_error --forward  forward at 20 ways too
    python -m benchmarks.gradient_error --quick    5 ways only
    python -m benchmarks.gradient_error --steps    what tolerance and step limit buy (adjoint)

Prints the Markdown tables of docs/derivation.md. The tests measure with the functions here.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from comln_serve.flow import Integration, solve_flow, uniform_weights
from training.flow_steps import DOPRI5
from training.gradient_flow import Method, gradient_flow
from training.gradient_flow.adjoint import adjoint_sweep
from training.results.tables import markdown

INPUTS = ("phi", "W0", "T", "lam", "weights")

# Weights of f(-2h), f(-h), f(h), f(2h), and of f(0), f(h), ... f(4h), over h: fourth order.
_CENTRAL = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))
_ONE_SIDED = ((0, -25 / 12), (1, 4.0), (2, -3.0), (3, 4 / 3), (4, -1 / 4))


@dataclass(frozen=True)
class Task:
    """A flow and the loss <V, W(T)> whose gradient is measured; shapes as in `solve_flow`."""

    phi: np.ndarray
    W0: np.ndarray
    Y: np.ndarray
    T: float
    lam: float
    weights: np.ndarray
    V: np.ndarray

    def loss(self) -> float:
        """<V, W(T)> from the tightly solved flow."""
        W = solve_flow(
            self.phi,
            self.W0,
            self.Y,
            self.T,
            lam=self.lam,
            weights=self.weights,
            rtol=1e-11,
            atol=1e-11,
            max_steps=2_000_000,
        ).W
        return float((self.V * W).sum())

    def gradients(self, method: Method, **options: Any) -> dict[str, np.ndarray]:
        """Derivatives of the loss in each of INPUTS, by default at the default tolerances."""
        tensors = {name: torch.tensor(getattr(self, name), dtype=torch.float64, requires_grad=True) for name in INPUTS}
        W = gradient_flow(
            tensors["phi"],
            tensors["W0"],
            torch.from_numpy(self.Y),
            tensors["T"],
            lam=tensors["lam"],
            weights=tensors["weights"],
            method=method,
            **options,
        )
        (W * torch.from_numpy(self.V)).sum().backward()
        return {name: np.asarray(tensor.grad) for name, tensor in tensors.items()}


def clustered_task(
    ways: int,
    shots: int,
    T: float,
    *,
    norm2: float = 100.0,
    offset: float = 3.0,
    lam: float = 0.0,
    d: int = 0,
    seed: int = 0,
) -> Task:
    """Embeddings in one cluster a class, mean ||phi||^2 = norm2; d defaults to 2 M.

    `offset` is added to every feature before scaling (class centres have variance 1). Features
    after a ReLU share such a component; it gives the Gram matrix one eigenvalue far above the
    rest, and the flow a mode that is long over while the others still move: it makes it stiff.
    """
    rng = np.random.default_rng(seed)
    d = d or 2 * ways * shots
    phi = np.repeat(rng.normal(size=(ways, d)), shots, axis=0)
    phi += 0.7 * rng.normal(size=phi.shape) + offset
    phi *= np.sqrt(norm2 / (phi**2).sum(axis=1).mean())
    W0 = rng.normal(size=(ways, d)) / np.sqrt(norm2)
    V = rng.normal(size=(ways, d))
    # Half of V where the adapted classifier moves: a random V alone hardly sees the support.
    V /= np.linalg.norm(V)
    seen = (np.repeat(np.eye(ways), shots, axis=1) - 1 / ways) @ phi
    V += seen / np.linalg.norm(seen)
    Y = np.eye(ways)[np.repeat(np.arange(ways), shots)]
    return Task(phi, W0, Y, T, lam, uniform_weights(ways * shots), V)


def directional_derivative(task: Task, name: str, direction: np.ndarray) -> float:
    """d loss / d input along `direction`, by fourth-order finite differences of the tight flow."""
    value = np.asarray(getattr(task, name), dtype=np.float64)
    if name == "lam":
        size = task.lam if task.lam > 0.0 else 1.0 / max(task.T, 1.0)
    else:
        size = float(np.abs(value).max() / np.abs(direction).max())
    h = 1e-3 * size
    one_sided = name == "lam" and task.lam == 0.0
    losses, factors = [], []
    for steps, factor in _ONE_SIDED if one_sided else _CENTRAL:
        moved = value + steps * h * direction
        losses.append(replace(task, **{name: moved if moved.ndim else float(moved)}).loss())
        factors.append(factor)
    # The factors sum to 0: equal losses (a flow at rest before T) give exactly 0.
    return sum(f * (x - losses[0]) for f, x in zip(factors, losses, strict=True)) / h


def gradient_size(task: Task, name: str, g: np.ndarray) -> float:
    """What an error of the gradient g is measured against: its norm.

    With lam > 0, dloss/dT fades to nothing as the flow comes to rest. A change of log T then
    moves the loss by T dloss/dT: less than a thousandth of the loss counts as a thousandth.
    """
    length = float(np.linalg.norm(g))
    if name == "T" and task.T > 0.0:
        return max(length, 1e-3 * abs(task.loss()) / task.T)
    return length


def gradient_errors(
    task: Task, gradients: dict[str, np.ndarray], seed: int = 0, directions: int = 1
) -> dict[str, float]:
    """Relative error of each gradient g.

    A scalar directly; else along g itself, |<g, v> - fd| / |g|, and along random unit vectors,
    where a part of g of relative size e that is wrong shows as e / sqrt(size) and is scaled back.
    The largest counts.
    """
    rng = np.random.default_rng(seed)
    errors = {}
    for name in INPUTS:
        g = gradients[name]
        if not np.isfinite(g).all():
            errors[name] = float("inf")
            continue
        length, size = float(np.linalg.norm(g)), gradient_size(task, name, g)
        tried = [g / length if g.ndim and length > 0.0 else np.ones_like(g)]
        if g.ndim:
            draws = (rng.normal(size=g.shape) for _ in range(directions))
            tried += [v / np.linalg.norm(v) for v in draws]
        worst = 0.0
        for i, v in enumerate(tried):
            difference = abs(float((g * v).sum()) - directional_derivative(task, name, v))
            worst = max(worst, difference * (np.sqrt(g.size) if i else 1.0) / size)
        errors[name] = worst
    return errors


# ways, T, mean ||phi||^2, offset, lam; 5 shots
CASES = [
    (5, 100.0, 100.0, 0.0, 0.0),
    (5, 100.0, 100.0, 3.0, 0.0),
    (5, 1e4, 100.0, 3.0, 0.0),
    (5, 1e4, 100.0, 10.0, 0.0),
    (5, 100.0, 100.0, 3.0, 0.01),
    (5, 100.0, 100.0, 3.0, 1.0),
    (10, 100.0, 100.0, 0.0, 0.01),
    (10, 100.0, 100.0, 3.0, 0.0),
    (20, 10.0, 100.0, 0.0, 1.0),
    (20, 10.0, 100.0, 3.0, 0.0),
    (20, 1e3, 100.0, 3.0, 0.0),
    (20, 1e4, 1e4, 0.0, 0.0),
    (20, 1e4, 1e4, 3.0, 0.0),
    (20, 1e6, 1e4, 3.0, 0.0),
    (20, 1e4, 1e4, 3.0, 0.01),
    (20, 1e4, 1e4, 3.0, 1.0),
]


def print_errors(ways_at_most: int, forward_ways_at_most: int) -> None:
    """Errors of both methods at default tolerances over CASES."""
    head = ["ways x shots", "T", "mean norm^2", "offset", "lam", "method", *[f"d{name}" for name in INPUTS], "ms"]
    print(markdown(head, []))
    for ways, T, norm2, offset, lam in CASES:
        if ways > ways_at_most:
            continue
        task = clustered_task(ways, 5, T, norm2=norm2, offset=offset, lam=lam)
        methods: list[Method] = ["adjoint"]
        # 20 ways with lam > 0 take thousands of steps, of a third of a second each.
        if ways <= forward_ways_at_most and (ways < 20 or lam == 0.0):
            methods.append("forward")
        for method in methods:
            gradients, milliseconds = _timed(lambda m=method, t=task: t.gradients(m))
            errors = gradient_errors(task, gradients)
            row = [f"{ways} x 5", f"{T:g}", f"{norm2:g}", f"{offset:g}", f"{lam:g}", method]
            row += [f"{errors[name]:.0e}" for name in INPUTS]
            _print_row([*row, f"{milliseconds:.0f}"])


def start_gradient(task: Task, tolerance: float, *, step_limit: bool) -> tuple[np.ndarray, int]:
    """dW0 (N, d) by the adjoint of the accepted steps, and their number; lam = 0."""
    Y = np.ascontiguousarray(task.Y.T)
    K, L0 = task.phi @ task.phi.T, np.ascontiguousarray(task.W0 @ task.phi.T)
    flow = Integration(
        K,
        np.empty((0, 0)),
        L0,
        Y,
        task.weights,
        task.T,
        0.0,
        rtol=tolerance,
        atol=tolerance,
        max_steps=10**6,
        limit_steps=step_limit,
    )
    steps, X, P = flow.advance(10_000)
    a, dL0 = -task.V @ task.phi.T, np.zeros_like(L0)  # W(T) = W0 - s phi, with s class-major
    adjoint_sweep(K, Y, task.weights, 0.0, DOPRI5, steps, X, P, a, np.zeros_like(K), dL0, np.zeros(len(K)), np.zeros(1))
    return task.V + dL0 @ task.phi, len(steps)


def print_step_control() -> None:
    """Steps and error of dW0 by tolerance, without and with the step limit."""
    print(markdown(["ways x shots", "T", "mean norm^2", "offset", "tolerance", "free steps", "limited steps"], []))
    for ways, T, norm2 in ((5, 1e4, 100.0), (20, 1e4, 1e4)):
        for offset in (0.0, 3.0, 10.0):
            task = clustered_task(ways, 5, T, norm2=norm2, offset=offset)
            reference, _ = start_gradient(task, 1e-12, step_limit=True)
            for tolerance in (1e-5, 1e-6, 1e-8):
                row = [f"{ways} x 5", f"{T:g}", f"{norm2:g}", f"{offset:g}", f"{tolerance:g}"]
                for step_limit in (False, True):
                    dW0, steps = start_gradient(task, tolerance, step_limit=step_limit)
                    error = np.linalg.norm(dW0 - reference) / np.linalg.norm(reference)
                    row.append(f"{steps}, {error:.0e}")
                _print_row(row)


def main() -> None:
    """Print the table asked for."""
    parser = argparse.ArgumentParser(description="Errors of the meta-gradients on stiff flows.")
    parser.add_argument("--quick", action="store_true", help="5 ways only")
    parser.add_argument("--forward", action="store_true", help="forward also at 20 ways (minutes)")
    parser.add_argument("--steps", action="store_true", help="tolerance and step limit instead")
    arguments = parser.parse_args()
    for method in ("adjoint", "forward"):
        clustered_task(2, 1, 1.0).gradients(method)  # compile
    if arguments.steps:
        print_step_control()
    else:
        print_errors(5 if arguments.quick else 20, 20 if arguments.forward else 10)


def _print_row(cells: list[str]) -> None:
    """A row of a table in Markdown, as soon as it is measured."""
    print(f"| {' | '.join(cells)} |", flush=True)


def _timed(call: Callable[[], dict[str, np.ndarray]]) -> tuple[dict[str, np.ndarray], float]:
    started = time.perf_counter()
    result = call()
    return result, 1000.0 * (time.perf_counter() - started)


if __name__ == "__main__":
    main()
