"""How a bundle's accuracy depends on the solver and on the horizon.

Solvers: the served Dormand-Prince and explicit Euler (gradient descent) with several step sizes:
accuracy, and time of an adaptation relative to Dormand-Prince. Horizons: accuracy over a grid of T
around the learned one. These are the paper's Table 4 and Figure 5 (right), for any bundle.

The learned T is that of the served model. If it depends on the task (`Head.horizon_of`), it and its
multiples and fractions differ between episodes; tables then show the median over the episodes.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from comln_serve.bundle.head import Head
from training.data import ImageSet
from training.evaluation.compare import Measured, difference, measure
from training.evaluation.euler import descend
from training.evaluation.evaluate import Classify, adapted, linear
from training.evaluation.tasks import Task
from training.evaluation.timing import milliseconds_in_turns
from training.results.accuracy import Difference

# Episodes on which adaptations are timed; the solvers take turns.
TIMED_EPISODES = 30

STEP_COUNTS = (10, 100, 1_000, 10_000)
"""By default Euler divides T into these numbers of steps."""

HORIZON_FACTORS = tuple(float(x) for x in 10.0 ** (np.arange(-8, 5) / 2))
"""By default T is multiplied by these factors: half decades from 1e-4 to 100."""

Embeddings = NDArray[np.float32]


OfTask = Callable[[float], float]
"""A step size or a horizon, in flow time, for a task with a given learned T."""


def fixed(value: float) -> OfTask:
    """The same for every task."""
    return lambda _: value


def part(count: int) -> OfTask:
    """The learned T in so many parts."""
    return lambda learned: learned / count


def multiple(factor: float) -> OfTask:
    """A multiple of the learned T."""
    return lambda learned: factor * learned


LEARNED = multiple(1.0)


@dataclass(frozen=True)
class SolverResult:
    """One solver on one task.

    Attributes:
        step_size: of Euler, in flow time; None for Dormand-Prince.
        steps: number of Euler's steps; None for Dormand-Prince, whose number varies.
        milliseconds: median time of an adaptation, from embeddings to W, on one thread.
        ratio: `milliseconds` over those of Dormand-Prince.
        behind: how far it is behind Dormand-Prince, in paired episodes.
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
    """One horizon on one task.

    Attributes:
        horizon: T, in flow time. factor: T over the learned T.
        behind: how far it is behind the learned horizon, in paired episodes.
    """

    task: Task
    horizon: float
    factor: float
    learned: bool
    measured: Measured
    behind: Difference


@dataclass(frozen=True)
class Episodes:
    """The first `count` episodes of a seed, of embeddings."""

    data: ImageSet
    count: int
    seed: int

    def learned_horizon(self, head: Head, task: Task) -> float:
        """Median over the episodes of the head's own T."""
        return statistics.median(
            head.horizon_of(self.data.images[task.draw(self.data, self.seed, number).support], task.ways)
            for number in range(self.count)
        )

    def measure(self, classify: Classify, task: Task) -> Measured:
        """A head on these episodes of a task."""
        return measure(self.data, classify, task, self.count, self.seed)


def solvers(head: Head, on: Episodes, task: Task, step_sizes: Sequence[OfTask]) -> list[SolverResult]:
    """Results of Dormand-Prince first, then of Euler with each step size."""
    sizes: list[OfTask | None] = [None, *step_sizes]
    times = _milliseconds(head, on, task, sizes)
    median = on.learned_horizon(head, task)
    found: list[SolverResult] = []
    for size in sizes:
        measured = on.measure(adapted(head) if size is None else linear(partial(_descend, head, size)), task)
        step = None if size is None else size(median)
        first = found[0].measured if found else measured
        found.append(
            SolverResult(
                task,
                step,
                None if step is None else int(np.ceil(median / step - 1e-9)),
                measured,
                times[size],
                times[size] / times[None],
                difference(first, measured),
            )
        )
    return found


def horizons(head: Head, on: Episodes, task: Task, values: Sequence[OfTask]) -> list[HorizonResult]:
    """Results for T = 0 (the start alone), `values`, and the learned T, in ascending order."""
    learned = on.measure(adapted(head), task)
    median = on.learned_horizon(head, task)
    found: dict[float, HorizonResult] = {}
    # The learned T first: another value that gives the same T is not measured again.
    for value in (LEARNED, fixed(0.0), *values):
        horizon, same = value(median), value is LEARNED
        if horizon not in found:
            measured = learned if same else on.measure(_with_horizon(head, value), task)
            found[horizon] = HorizonResult(
                task, horizon, horizon / median, same, measured, difference(learned, measured)
            )
    return [found[horizon] for horizon in sorted(found)]


def _with_horizon(head: Head, horizon: OfTask) -> Classify:
    def weights(phi: Embeddings, classes: NDArray[np.intp], ways: int) -> NDArray[np.float64]:
        return head.adapt(phi, classes, ways, horizon=horizon(head.horizon_of(phi, ways))).W

    return linear(weights)


def _descend(head: Head, size: OfTask, phi: Embeddings, classes: NDArray[np.intp], ways: int) -> NDArray[np.float64]:
    T = head.horizon_of(phi, ways)
    return descend(head, phi, classes, ways, step_size=size(T), horizon=T)


def _milliseconds(head: Head, on: Episodes, task: Task, sizes: Sequence[OfTask | None]) -> dict[OfTask | None, float]:
    """Median time of an adaptation with each solver, on the same episodes."""

    def drawn(number: int) -> tuple[Embeddings, NDArray[np.intp], int]:
        found = task.draw(on.data, on.seed, number)
        return on.data.images[found.support], found.support_classes, task.ways

    rounds = (drawn(number) for number in (0, *range(min(TIMED_EPISODES, on.count))))
    with threadpool_limits(1, user_api="blas"):
        return milliseconds_in_turns(
            {size: head.adapt if size is None else partial(_descend, head, size) for size in sizes}, rounds
        )
