"""The steps of the reduced flow, which the methods differentiate.

There are two solvers: Dormand-Prince with error control ("dopri5"), and explicit Euler with steps of one size
("euler"), which is gradient descent on W, ANIL's inner loop. Both are explicit Runge-Kutta methods: a step is given by
a table of coefficients, a state and a length, and the methods need only these.

Steps are yielded in chunks, so that a long trajectory need not be in memory.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# Numba infers the types of the kernels' arguments, which the docstrings state.

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numba import njit

from comln_serve.flow import FlowError, Integration, check_problem, check_tolerances, effective_horizon
from comln_serve.flow.kernels import combine, comes_to_rest, likeliest, vector_field, workspace
from comln_serve.flow.problem import Array
from comln_serve.flow.tableau import STAGES, A
from training.config.flow import TORCHDIFFEQ, SolverName

# Default tolerances. With them the measured errors of the gradients are at most 1e-5
# (docs/derivation.md). If the flow comes to rest (lam > 0, or soft labels), dLoss/dT depends on the
# small remaining rate, and the same relative error needs two more digits of s.
TOLERANCE = 2e-6
TOLERANCE_AT_REST = 1e-8

# (stages + 1, stages): row i has the coefficients of the earlier stages in stage i, the last row the
# weights of the solution. Dormand-Prince's last stage, used only for error estimates, is left out.
DOPRI5 = A[:, : STAGES - 1].copy()
EULER = np.array([[0.0], [1.0]])

# Euler's number of steps is T / step_size rounded up, with slack for the rounding of the division.
_STEP_COUNT_SLACK = 1e-9


@dataclass(frozen=True)
class ReducedProblem:
    """Algorithm 6 for one task, class-major (see `comln_serve.flow.kernels`), float64.

    Attributes:
        K: (M, M) Gram matrix phi phi^T. L0: (N, M) logits W0 phi^T at time 0. Y: (N, M) labels.
        w: (M,) weights. T: horizon. lam: regularisation.
    """

    K: Array
    L0: Array
    Y: Array
    w: Array
    T: float
    lam: float

    def __post_init__(self) -> None:
        """Raise ValueError if shapes or values are invalid."""
        check_problem(self.K, self.L0, self.Y, self.T, self.lam, self.w)

    @property
    def arrays(self) -> tuple[Array, Array, Array, Array, float]:
        """The first arguments of every kernel here."""
        return self.K, self.L0, self.Y, self.w, self.lam


@dataclass(frozen=True)
class Solver:
    """How the steps are taken.

    Attributes:
        name: "dopri5" or "euler", compiled; or a solver of torchdiffeq, which `odeint` runs.
        rtol, atol: tolerance of the local error of a solver that chooses its steps, atol on the
            support logits. None: the defaults above.
        max_steps: largest number of steps per task; of attempted steps if the solver chooses them.
        step_size: of a solver of equal steps, in flow time; of Euler ANIL's learning rate. The last
            step is shorter if T is not a multiple of it.
    """

    name: SolverName
    rtol: float | None
    atol: float | None
    max_steps: int
    step_size: float | None

    def __post_init__(self) -> None:
        """Raise ValueError for invalid settings."""
        if self.name not in get_args(SolverName):
            others = ", ".join(name for name in get_args(SolverName) if name.startswith(TORCHDIFFEQ))
            raise ValueError(f'solver must be "dopri5" or "euler", or one of {others}; got {self.name!r}')
        if self.step_size is None:
            check_tolerances(*self.tolerances(at_rest=False))

    def tolerances(self, *, at_rest: bool) -> tuple[float, float]:
        """Rtol and atol for a task; `at_rest`: its flow comes to rest."""
        default = TOLERANCE_AT_REST if at_rest else TOLERANCE
        rtol, atol = (default if x is None else x for x in (self.rtol, self.atol))
        return rtol, atol

    @property
    def table(self) -> Array:
        """(stages + 1, stages) coefficients of a step."""
        return DOPRI5 if self.name == "dopri5" else EULER


@dataclass(frozen=True)
class Chunk:
    """Consecutive steps.

    Attributes:
        steps: (n, S) the flow time by which each stage's rate is multiplied: a step adds
            sum_i b_i steps[i] rate_i. For Euler it is the length h. dopri5 rescales time, and it
            is h times the rate of flow time at the stage (see `comln_serve.flow.kernels`).
        X: (n, S, N, M) state at the stages of each step; the first stage is the step's start.
        P: (n, S, N, M) softmax of the logits there, stored so that the derivatives need neither
            matrix products nor exponentials for them.
        end: (N, M) state after the last.
    """

    steps: Array
    X: Array
    P: Array
    end: Array

    @property
    def states(self) -> Array:
        """(n, N, M) state at the start of each step."""
        return self.X[:, 0]


class Flow:
    """s(T) of one task.

    Attributes:
        problem, solver: the problem, and how it was solved.
        last: the last chunk of steps, None if T = 0.
    """

    def __init__(self, problem: ReducedProblem, solver: Solver) -> None:
        self.problem, self.solver = problem, solver
        self.last: Chunk | None = None

    @property
    def state(self) -> Array:
        """(N, M) s(T)."""
        return np.zeros_like(self.problem.L0) if self.last is None else self.last.end

    def end_rate(self) -> Array:
        """ds(T)/dT (N, M): the flow's rate at T; for Euler, the rate at the start of its last step.

        Zero if the flow came to rest before T, where exp(-lam T) is below the resolution of float64.
        """
        problem, state = self.problem, self.state
        if self.solver.name == "euler":
            state = state if self.last is None else self.last.states[-1]
        elif effective_horizon(problem.T, problem.lam) < problem.T:
            return np.zeros_like(state)
        return rate_at(*problem.arrays, state)


def march(problem: ReducedProblem, solver: Solver, size: int) -> Iterator[Chunk]:
    """Solve the reduced flow, `size` steps at a time.

    Raises:
        FlowError: the solver could not reach T; the message says what to change.
    """
    if solver.name == "euler":
        yield from _euler(problem, solver, size)
        return
    rtol, atol = solver.tolerances(at_rest=comes_to_rest(problem.Y, problem.w, problem.lam))
    flow = Integration(
        problem.K,
        np.empty((0, 0)),
        problem.L0,
        problem.Y,
        problem.w,
        problem.T,
        problem.lam,
        rtol=rtol,
        atol=atol,
        max_steps=solver.max_steps,
        limit_steps=True,
    )
    while not flow.done:
        steps, X, P = flow.advance(size)
        if len(steps):
            yield Chunk(steps, X, P, flow.X.copy())


def _euler(problem: ReducedProblem, solver: Solver, size: int) -> Iterator[Chunk]:
    h, count = float(solver.step_size or 0.0), step_count(problem.T, solver)
    state, equal = np.zeros_like(problem.L0), np.full((min(size, count), 1), h)
    for first in range(0, count, size):
        steps = equal[: count - first]
        if first + size >= count:
            steps = steps.copy()
            steps[-1] = problem.T - (count - 1) * h
        chunk = replay(problem, solver, state, steps)
        state = chunk.end
        if not np.isfinite(state).all():
            raise FlowError(
                f"Euler steps of {h:g} left the range of float64 before T = {problem.T:g}. Use a smaller step_size"
            )
        yield chunk


def step_count(T: float, solver: Solver) -> int:
    """Number of equal steps up to T.

    Raises:
        FlowError: more than max_steps.
    """
    h = float(solver.step_size or 0.0)
    quotient = T / h - _STEP_COUNT_SLACK  # may be infinite
    if quotient > solver.max_steps:
        raise FlowError(
            f"T = {T:g} takes {np.ceil(quotient):.6g} steps of {h:g}, more than "
            f"max_steps = {solver.max_steps}. Use a larger step_size, or raise max_steps"
        )
    return math.ceil(quotient)


def replay(problem: ReducedProblem, solver: Solver, start: Array, steps: Array) -> Chunk:
    """Take given steps (n, S) from a state (N, M)."""
    X = np.empty((len(steps), solver.table.shape[1], *start.shape))
    P, end = np.empty_like(X), start.copy()
    _replay(*problem.arrays, solver.table, end, steps, X, P)
    return Chunk(steps, X, P, end)


@njit(cache=True, nogil=True, error_model="numpy")
def rate_at(K, L0, Y, w, lam, state):  # type: ignore[no-untyped-def]
    """ds/dt (N, M) at a state (N, M)."""
    n_classes, n_examples = state.shape
    P, rate, none = np.empty(state.shape), np.empty(state.shape), np.empty((0, 0))
    work = workspace(n_classes, n_examples)
    vector_field(K, none, L0, Y, likeliest(Y), w, lam, state, P, rate, work)
    return rate


@njit(cache=True, nogil=True, error_model="numpy")
def _replay(K, L0, Y, w, lam, table, state, steps, X, P):  # type: ignore[no-untyped-def]
    """Advance `state` (N, M) in place over steps (n, S), filling X and P (n, S, N, M)."""
    n_steps, n_stages, n_classes, n_examples = X.shape
    size = n_classes * n_examples
    flat, flat_X = state.reshape(size), X.reshape((n_steps, n_stages, size))
    k = np.empty((n_stages, n_classes, n_examples))
    rates = k.reshape((n_stages, size))
    none, top, work = np.empty((0, 0)), likeliest(Y), workspace(n_classes, n_examples)
    for step in range(n_steps):
        for i in range(n_stages):
            combine(1.0, table[i], 0, i, rates, flat, flat_X[step, i])
            vector_field(K, none, L0, Y, top, w, lam, X[step, i], P[step, i], k[i], work)
            rates[i] *= steps[step, i]
        combine(1.0, table[n_stages], 0, n_stages, rates, flat, flat)
