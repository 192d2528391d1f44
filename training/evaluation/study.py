"""How a bundle's accuracy depends on the solver and on the horizon.

Solvers: the served Dormand-Prince and explicit Euler (gradient descent) with several step sizes:
accuracy, and time of an adaptation relative to Dormand-Prince. Horizons: accuracy over a grid of T
around the learned one. These are the paper's Table 4 and Figure 5 (right), for any bundle.

The learned T is that of the served model. If it depends on the task (`Head.horizon_of`), it and its
multiples and fractions differ between episodes; tables then show the median over the episodes.
"""

import statistics
from collections.abc import Sequence
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


@dataclass(frozen=True)
class Steps:
    """Euler's steps: a number of equal steps up to the learned T, or a step size in flow time."""

    count: int | None = None
    size: float | None = None

    def size_for(self, horizon: float) -> float:
        """Step size in flow time for a task with this T."""
        if self.size is not None:
            return self.size
        return horizon / (self.count or 1)

    def count_for(self, horizon: float) -> int:
        """Number of steps for a task with this T."""
        return int(np.ceil(horizon / self.size_for(horizon) - 1e-9))


@dataclass(frozen=True)
class Horizon:
    """A multiple of the learned T, or a T in flow time."""

    factor: float | None = None
    value: float = 0.0

    def for_task(self, learned: float) -> float:
        """T in flow time for a task with this learned T."""
        return self.value if self.factor is None else self.factor * learned


LEARNED, NONE = Horizon(factor=1.0), Horizon(value=0.0)


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


def solvers(head: Head, on: Episodes, task: Task, steps: Sequence[Steps]) -> list[SolverResult]:
    """Results of Dormand-Prince first, then of Euler with each kind of steps.

    Raises:
        FlowError: more steps than `head.solver.max_steps`.
    """
    kinds: list[Steps | None] = [None, *steps]
    times = _milliseconds(head, on, task, kinds)
    median = on.learned_horizon(head, task)
    found: list[SolverResult] = []
    for kind in kinds:
        measured = on.measure(adapted(head) if kind is None else linear(partial(_descend, head, kind)), task)
        first = found[0].measured if found else measured
        found.append(
            SolverResult(
                task,
                None if kind is None else kind.size_for(median),
                None if kind is None else kind.count_for(median),
                measured,
                times[kind],
                times[kind] / times[None],
                difference(first, measured),
            )
        )
    return found


def horizons(head: Head, on: Episodes, task: Task, values: Sequence[Horizon]) -> list[HorizonResult]:
    """Results for T = 0 (the start alone), `values`, and the learned T, in ascending order.

    Raises:
        FlowError: the flow of an episode could not be solved up to a horizon.
    """
    learned = on.measure(adapted(head), task)
    median = on.learned_horizon(head, task)
    found: dict[float, HorizonResult] = {}
    # The learned T first: another value that gives the same T is not measured again.
    for value in (LEARNED, NONE, *values):
        horizon, same = value.for_task(median), value == LEARNED
        if horizon not in found:
            measured = learned if same else on.measure(_with_horizon(head, value), task)
            found[horizon] = HorizonResult(
                task, horizon, horizon / median, same, measured, difference(learned, measured)
            )
    return [found[horizon] for horizon in sorted(found)]


def _with_horizon(head: Head, horizon: Horizon) -> Classify:
    def weights(phi: Embeddings, classes: NDArray[np.intp], ways: int) -> NDArray[np.float64]:
        return head.adapt(phi, classes, ways, horizon=horizon.for_task(head.horizon_of(phi, ways))).W

    return linear(weights)


def _descend(head: Head, steps: Steps, phi: Embeddings, classes: NDArray[np.intp], ways: int) -> NDArray[np.float64]:
    T = head.horizon_of(phi, ways)
    return descend(head, phi, classes, ways, step_size=steps.size_for(T), horizon=T)


def _milliseconds(head: Head, on: Episodes, task: Task, kinds: Sequence[Steps | None]) -> dict[Steps | None, float]:
    """Median time of an adaptation with each solver, on the same episodes."""

    def drawn(number: int) -> tuple[Embeddings, NDArray[np.intp], int]:
        found = task.draw(on.data, on.seed, number)
        return on.data.images[found.support], found.support_classes, task.ways

    rounds = (drawn(number) for number in (0, *range(min(TIMED_EPISODES, on.count))))
    with threadpool_limits(1, user_api="blas"):
        return milliseconds_in_turns(
            {kind: head.adapt if kind is None else partial(_descend, head, kind) for kind in kinds}, rounds
        )
