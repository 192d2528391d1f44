"""The path of an adjoint that recomputes W(t) backward in time: the paper's Figure 2, and the same on a task.

    python -m benchmarks.backward_path

writes docs/images/backward-path.png and benchmarks/results/backward_path.json. torchdiffeq's Dormand-Prince in float64,
forward in time from W(0), then backward from the W(T) it found, as `torchdiffeq.odeint_adjoint` does. On the left a
quadratic loss of two weights; on the right the flow of the support loss of one 5-way 5-shot task, that of
`tests/trainer/gradient_flow/test_gradient_claims.py`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchdiffeq import odeint

from benchmarks.gradient_error import clustered_task

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RESULT = Path(__file__).parent / "results" / "backward_path.json"
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "backward-path.png"

Field = Callable[[Tensor, Tensor], Tensor]

CURVATURE, MINIMUM, START, END = (1.0, 40.0), (0.0, 0.0), (1.0, 0.8), 0.42
QUADRATIC_TOLERANCE, TASK_TOLERANCE = 1e-6, 1e-8


def quadratic() -> Field:
    """-grad L of L(W) = 1/2 (W - W*)^T H (W - W*), H diagonal."""
    H, minimum = torch.tensor(CURVATURE, dtype=torch.float64), torch.tensor(MINIMUM, dtype=torch.float64)
    return lambda _t, W: -H * (W - minimum)


def there_and_back(
    field: Field, start: Tensor, times: NDArray[np.float64], tolerance: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """States at `times` (n,), rising: integrated forward from `start`, and backward from the last of these.

    Returns:
        Two arrays (n, ...), both in the order of `times`.
    """

    def integrate(state: Tensor, at: NDArray[np.float64]) -> Any:
        return odeint(field, state, torch.from_numpy(at.copy()), method="dopri5", rtol=tolerance, atol=tolerance)

    forward = integrate(start, times)
    backward = integrate(forward[-1], times[::-1])
    return forward.numpy(), backward.numpy()[::-1]


def on_task() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times (n,) and relative distances (n,) of the recomputed W(t) from the one of the way forward."""
    task = clustered_task(5, 5, 1e4, norm2=1e3, offset=0.0, d=32)
    phi, Y, weights = torch.from_numpy(task.phi), torch.from_numpy(task.Y), torch.from_numpy(task.weights)

    def field(_t: Tensor, W: Tensor) -> Tensor:
        return -(weights[:, None] * (torch.softmax(phi @ W.T, dim=1) - Y)).T @ phi

    times = np.concatenate([[0.0], np.geomspace(1e-4, task.T, 200)])
    forward, backward = there_and_back(field, torch.tensor(task.W0), times, TASK_TOLERANCE)
    return times, np.linalg.norm(backward - forward, axis=(1, 2)) / np.linalg.norm(forward, axis=(1, 2))


def main() -> None:
    """Write the figure and the distances at t = 0."""
    figure, (plane, distance) = plt.subplots(1, 2, figsize=(10, 4.2))
    times = np.linspace(0.0, END, 400)
    start = torch.tensor(START, dtype=torch.float64)
    forward, backward = there_and_back(quadratic(), start, times, QUADRATIC_TOLERANCE)
    a, b = np.meshgrid(np.linspace(-0.2, 1.2, 200), np.linspace(-0.4, 1.6, 200))
    plane.contour(a, b, CURVATURE[0] * a**2 + CURVATURE[1] * b**2, levels=12, colors="0.85", linewidths=0.8)
    plane.plot(*forward.T, color="C2", label="forward from W(0)")
    plane.plot(*backward.T, color="C3", label="backward from W(T)")
    for point, name in ((forward[0], "W(0)"), (forward[-1], "W(T)"), (np.array(MINIMUM), "W*")):
        plane.plot(*point, "k.")
        plane.annotate(name, point, xytext=(6, 6), textcoords="offset points")
    plane.set(xlim=(-0.2, 1.2), ylim=(-0.4, 1.6), title=f"quadratic loss, tolerance {QUADRATIC_TOLERANCE:g}")
    plane.legend(loc="lower right")
    t, relative = on_task()
    distance.loglog(t[1:-1], relative[1:-1], color="C3")
    distance.set(
        xlabel="t",
        ylabel="distance of the recomputed W(t), relative",
        title=f"support loss of a 5-way 5-shot task, tolerance {TASK_TOLERANCE:g}",
    )
    distance.grid(visible=True, alpha=0.3)
    figure.tight_layout()
    figure.savefig(FIGURE, dpi=100, metadata={"Software": None})
    found = {
        "quadratic": float(np.linalg.norm(backward[0] - forward[0]) / np.linalg.norm(forward[0])),
        "task": float(relative[0]),
    }
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(found)


if __name__ == "__main__":
    main()
