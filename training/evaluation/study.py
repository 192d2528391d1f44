"""What a bundle's adaptation owes to its solver and to its horizon.

Solvers: the served Dormand-Prince beside explicit Euler (gradient descent) at several step sizes:
accuracy, and time of an adaptation relative to Dormand-Prince's. Horizons: accuracy over a grid of
T around the learned one. These are the paper's solver table and its Figure 4, on any bundle.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from comln_serve.bundle.head import Head
from training.data import ImageSet
from training.evaluation.compare import Difference, Measured, difference, measure
from training.evaluation.euler import descend, descended
from training.evaluation.evaluate import adapted
from training.evaluation.tasks import Task

# Episodes on which adaptations are timed, solvers taking turns.
TIMED_EPISODES = 30

STEP_COUNTS = (10, 100, 1_000, 10_000)
"""Unless told otherwise, Euler takes T in these numbers of steps."""

HORIZON_FACTORS = tuple(float(x) for x in 10.0 ** (np.arange(-8, 5) / 2))
"""Unless told otherwise, T is multiplied by these: half decades from 1e-4 to 100."""


@dataclass(frozen=True)
class SolverResult:
    """One solver on one task.

    Attributes:
        step_size: Euler's, in flow time; None for Dormand-Prince.
        steps: of Euler; None for Dormand-Prince, whose number varies.
        milliseconds: median of an adaptation, from embeddings to W, on one thread.
        ratio: of `milliseconds` to Dormand-Prince's.
        behind: how far it is behind Dormand-Prince, in pairs.
    """

    task: Task
    step_size: float | None
    steps: int | None
    measured: Measured
    milliseconds: float
    ratio: float
    behind: Difference

    @property
    def name(self) -> str:
        """ "dopri5" or "euler"."""
        return "dopri5" if self.step_size is None else "euler"


@dataclass(frozen=True)
class HorizonResult:
    """One horizon on one task; `behind` the learned horizon in pairs."""

    task: Task
    horizon: float
    learned: bool
    measured: Measured
    behind: Difference


@dataclass(frozen=True)
class Episodes:
    """The episodes everything is measured on: `count` of `seed`, over embeddings (n, d) of data."""

    embeddings: NDArray[np.float32]
    data: ImageSet
    count: int
    seed: int


def solvers(
    head: Head, on: Episodes, task: Task, step_sizes: Sequence[float]
) -> list[SolverResult]:
    """Dormand-Prince first, then Euler at each step size.

    Raises:
        FlowError: a step size that would take more than `head.solver.max_steps` steps.
    """
    sizes: list[float | None] = [None, *step_sizes]
    times = _milliseconds(head, on, task, sizes)
    found: list[SolverResult] = []
    for size in sizes:
        classify = (
            adapted(head)
            if size is None
            else descended(head, step_size=size, horizon=head.horizon)
        )  # fmt: skip
        measured = measure(on.embeddings, on.data, classify, task, on.count, on.seed)
        first = found[0].measured if found else measured
        steps = None if size is None else int(np.ceil(head.horizon / size - 1e-9))
        found.append(
            SolverResult(
                task, size, steps, measured, times[size], times[size] / times[None],
                difference(first, measured),
            )
        )  # fmt: skip
    return found


def horizons(head: Head, on: Episodes, task: Task, values: Sequence[float]) -> list[HorizonResult]:
    """T = 0 (the start alone), `values`, and the learned T, in ascending order.

    Raises:
        FlowError: a horizon at which an episode's flow could not be solved.
    """

    def at(horizon: float) -> Measured:
        classify = adapted(head, horizon)
        return measure(on.embeddings, on.data, classify, task, on.count, on.seed)

    learned = at(head.horizon)
    found: list[HorizonResult] = []
    for horizon in sorted({0.0, head.horizon, *values}):
        same = horizon == head.horizon
        measured = learned if same else at(horizon)
        found.append(HorizonResult(task, horizon, same, measured, difference(learned, measured)))
    return found


def _milliseconds(
    head: Head, on: Episodes, task: Task, sizes: Sequence[float | None]
) -> dict[float | None, float]:
    """Median time of an adaptation with each solver, all on the same episodes in turns."""

    def run(
        size: float | None, phi: NDArray[np.float32], classes: NDArray[np.intp]
    ) -> Callable[[], object]:
        if size is None:
            return lambda: head.adapt(phi, classes, task.ways)
        return lambda: descend(
            head, phi, classes, task.ways, step_size=size, horizon=head.horizon
        )  # fmt: skip

    times: dict[float | None, list[float]] = {size: [] for size in sizes}
    with threadpool_limits(1, user_api="blas"):
        for number in range(-1, min(TIMED_EPISODES, on.count)):
            drawn = task.draw(on.data, on.seed, max(number, 0))
            for size in sizes:
                adapt = run(size, on.embeddings[drawn.support], drawn.support_classes)
                began = time.perf_counter()
                adapt()
                if number >= 0:  # the first round warms up
                    times[size].append(1e3 * (time.perf_counter() - began))
    return {size: statistics.median(values) for size, values in times.items()}
