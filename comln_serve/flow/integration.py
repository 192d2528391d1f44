"""One integration in progress: the buffers of the compiled integrator, and its errors."""

import numpy as np
from numpy.typing import NDArray

from comln_serve.flow import kernels
from comln_serve.flow.problem import Array, effective_horizon


class FlowError(ArithmeticError):
    """The flow could not be solved to its tolerance; the message says what to change."""


class Integration:
    """The flow from time 0 to its horizon, integrated at once or some steps at a time.

    Class-major, as in `kernels`; the arguments have passed `check_problem`.

    Args:
        features, back, logits, Y: F (M, r), G (r, M) or (0, 0), L0 (N, M) and Y (N, M).
        w: (M,) weights.
        T, lam: scalars.
        rtol, atol: tolerance of the local error; atol is measured on the support logits.
        max_steps: most tried steps.
        limit_steps: keep the steps short enough to be differentiated (see `kernels.integrate`).
        cancel: (1,) array; another thread sets it to True to end the integration.
        marks: (m,) ascending flow times from 0 to T at which to record the state.

    Attributes:
        X: (N, r) the state.
        marked: (m, N, r) the state at each mark passed so far.
        done: whether X is the state at T.
    """

    def __init__(
        self,
        features: Array,
        back: Array,
        logits: Array,
        Y: Array,
        w: Array,
        T: float,
        lam: float,
        *,
        rtol: float,
        atol: float,
        max_steps: int,
        limit_steps: bool,
        cancel: NDArray[np.bool_] | None = None,
        marks: Array | None = None,
    ) -> None:
        self.T, self._tolerances, self._max_steps = T, (rtol, atol), int(max_steps)
        self._arguments = (
            features,
            back,
            logits,
            Y,
            w,
            lam,
            effective_horizon(T, lam),
            float(rtol),
            float(atol),
            self._max_steps,
            limit_steps,
            np.zeros(1, dtype=np.bool_) if cancel is None else cancel,
        )
        self._shape = logits.shape
        shape = (logits.shape[0], features.shape[1])
        self.X = np.zeros(shape)
        self._P, self._rate, self._mode = np.empty(logits.shape), np.empty(shape), np.empty(shape)
        self._memory = np.zeros(kernels.MEMORY)
        self._marks = np.empty(0) if marks is None else marks
        # Zeros are the state at time 0: for T = 0 the only one, and nothing is integrated.
        self.marked = np.zeros((len(self._marks), *shape))
        self.done = T == 0.0

    @property
    def accepted(self) -> int:
        """Accepted steps so far."""
        return int(self._memory[kernels.ACCEPTED])

    @property
    def rejected(self) -> int:
        """Rejected steps so far."""
        return int(self._memory[kernels.REJECTED])

    def advance(self, at_most: int = 0) -> tuple[Array, Array, Array]:
        """Integrate to T, or for `at_most` accepted steps, which are returned.

        Args:
            at_most: accepted steps to take; 0 integrates to T and returns no steps.

        Returns:
            steps (n, 6), the flow time by which each stage's rate is multiplied (see
            `kernels.integrate`), and X (n, 6, N, r) and softmax(logits) (n, 6, N, M) at the stages;
            X at the first stage is the state at the start of the step.

        Raises:
            FlowError: the tolerance could not be met, or the integration was cancelled.
        """
        n_stages = kernels.STAGES - 1
        steps = np.empty((at_most, n_stages))
        X = np.empty((at_most, n_stages, *self.X.shape))
        P = np.empty((at_most, n_stages, *self._shape))
        if self.done:
            return steps[:0], X[:0], P[:0]
        status, kept = kernels.integrate(
            *self._arguments,
            self.X,
            self._P,
            self._rate,
            self._mode,
            self._memory,
            steps,
            X,
            P,
            self._marks,
            self.marked,
        )
        if status not in {kernels.OK, kernels.FULL}:
            raise FlowError(self._explain(status))
        self.done = status == kernels.OK
        return steps[:kept], X[:kept], P[:kept]

    def _explain(self, status: int) -> str:
        rtol, atol = self._tolerances
        reached = kernels.flow_time(self._memory[kernels.TIME], self._memory[kernels.KNEE])
        where = f"the flow stopped at t = {reached:.6g} of T = {self.T:.6g} (rtol {rtol:g}, atol {atol:g})"
        if status == kernels.TOO_MANY_STEPS:
            return (
                f"{where}: {self._max_steps} steps were not enough. The support set may hold "
                "equal images under different labels; use a shorter horizon, or raise max_steps"
            )
        if status == kernels.CANCELLED:
            return f"{where}: it took too long and was cancelled. Use a shorter horizon"
        if status == kernels.STEP_UNDERFLOW:
            return f"{where}: the step became too small to advance. Loosen rtol and atol"
        return f"{where}: values left the range of float64. Scale the embeddings down"
