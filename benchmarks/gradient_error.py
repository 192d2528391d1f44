"""Errors of the meta-gradients on stiff flows, against finite differences of the tight flow.

    python benchmarks/gradient_error.py            adjoint; forward where it takes seconds
    python benchmarks/gradient_error.py --quick    5 ways only

Prints a Markdown table, the one in docs/derivation.md. The tests measure with the functions here.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from comln_serve.flow import solve_flow, uniform_weights
from training.gradient_flow import gradient_flow
from training.gradient_flow.operation import Method

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
            self.phi, self.W0, self.Y, self.T, lam=self.lam, weights=self.weights,
            rtol=1e-11, atol=1e-11, max_steps=2_000_000,
        ).W  # fmt: skip
        return float((self.V * W).sum())

    def gradients(self, method: Method) -> dict[str, np.ndarray]:
        """Derivatives of the loss in each of INPUTS at default tolerances."""
        tensors = {
            name: torch.tensor(getattr(self, name), dtype=torch.float64, requires_grad=True)
            for name in INPUTS
        }
        W = gradient_flow(
            tensors["phi"], tensors["W0"], torch.from_numpy(self.Y), tensors["T"],
            lam=tensors["lam"], weights=tensors["weights"], method=method,
        )  # fmt: skip
        (W * torch.from_numpy(self.V)).sum().backward()
        return {name: np.asarray(tensor.grad) for name, tensor in tensors.items()}


def clustered_task(
    ways: int, shots: int, T: float, *, norm2: float = 100.0, lam: float = 0.0, d: int = 0,
    seed: int = 0,
) -> Task:  # fmt: skip
    """Embeddings in one cluster a class, mean ||phi||^2 = norm2; d defaults to 2 M."""
    rng = np.random.default_rng(seed)
    d = d or 2 * ways * shots
    phi = np.repeat(rng.normal(size=(ways, d)), shots, axis=0)
    phi += 0.7 * rng.normal(size=phi.shape)
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
    total = 0.0
    for steps, factor in _ONE_SIDED if one_sided else _CENTRAL:
        moved = value + steps * h * direction
        changed = replace(task, **{name: moved if moved.ndim else float(moved)})
        total += factor * changed.loss()
    return total / h


def gradient_errors(
    task: Task, gradients: dict[str, np.ndarray], seed: int = 0, directions: int = 1
) -> dict[str, float]:
    """Relative error of each gradient g.

    Along g itself, |<g, v> - fd| / |g|, and along random unit vectors, where a part of g of
    relative size e that is wrong shows as e / sqrt(size) and is scaled back. The largest counts.
    """
    rng = np.random.default_rng(seed)
    errors = {}
    for name in INPUTS:
        g = gradients[name]
        if not np.isfinite(g).all():
            errors[name] = float("inf")
            continue
        length = float(np.linalg.norm(g))
        tried = [g / length if length > 0.0 else np.ones_like(g)]
        if g.ndim:
            draws = (rng.normal(size=g.shape) for _ in range(directions))
            tried += [v / np.linalg.norm(v) for v in draws]
        worst = 0.0
        for i, v in enumerate(tried):
            difference = abs(float((g * v).sum()) - directional_derivative(task, name, v))
            worst = max(worst, difference * (np.sqrt(g.size) if i else 1.0) / length)
        errors[name] = worst
    return errors


# ways, shots, T, mean ||phi||^2, lam, whether the forward method takes only seconds
CASES = [
    (5, 5, 100.0, 100.0, 0.0, True),
    (5, 5, 1e4, 100.0, 0.0, True),
    (5, 5, 100.0, 100.0, 0.01, True),
    (5, 5, 100.0, 100.0, 1.0, True),
    (10, 5, 100.0, 100.0, 0.0, True),
    (20, 5, 10.0, 100.0, 0.0, False),
    (20, 5, 1e3, 100.0, 0.0, False),
    (20, 5, 1e4, 1e4, 0.0, False),
    (20, 5, 1e6, 1e4, 0.0, False),
    (20, 5, 1e4, 1e4, 0.01, False),
    (20, 5, 1e4, 1e4, 1.0, False),
]


def main() -> None:
    """Measure CASES and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="5 ways only")
    parser.add_argument("--slow", action="store_true", help="forward method at 20 ways too")
    arguments = parser.parse_args()
    clustered_task(2, 1, 1.0).gradients("adjoint")  # compile
    head = ["ways x shots", "T", "mean ||phi||^2", "lam", "method", *[f"d{n}" for n in INPUTS]]
    print("| " + " | ".join([*head, "ms"]) + " |")
    print("|" + "---|" * (len(head) + 1))
    for ways, shots, T, norm2, lam, forward in CASES:
        if arguments.quick and ways > 5:
            continue
        task = clustered_task(ways, shots, T, norm2=norm2, lam=lam)
        methods: list[Method] = ["adjoint"]
        if forward or arguments.slow:
            methods.append("forward")
        for method in methods:
            gradients, milliseconds = _timed(lambda m=method, t=task: t.gradients(m))
            errors = gradient_errors(task, gradients)
            row = [f"{ways} x {shots}", f"{T:g}", f"{norm2:g}", f"{lam:g}", method]
            row += [f"{errors[name]:.0e}" for name in INPUTS]
            print("| " + " | ".join([*row, f"{milliseconds:.0f}"]) + " |", flush=True)


def _timed(call: Callable[[], dict[str, np.ndarray]]) -> tuple[dict[str, np.ndarray], float]:
    started = time.perf_counter()
    result = call()
    return result, 1000.0 * (time.perf_counter() - started)


if __name__ == "__main__":
    main()
