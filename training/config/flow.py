"""Section `flow`: how training computes the adaptation and its meta-gradients."""

import math
from typing import Literal, Self

from pydantic import model_validator

from comln_serve.bundle.head import SolverSettings
from training.config.section import Positive, Section

Method = Literal["adjoint", "forward"]

SolverName = Literal[
    "dopri5",
    "euler",
    "torchdiffeq.dopri5",
    "torchdiffeq.dopri8",
    "torchdiffeq.bosh3",
    "torchdiffeq.fehlberg2",
    "torchdiffeq.adaptive_heun",
    "torchdiffeq.scipy_solver",
    "torchdiffeq.euler",
    "torchdiffeq.midpoint",
    "torchdiffeq.heun2",
    "torchdiffeq.heun3",
    "torchdiffeq.rk4",
    "torchdiffeq.explicit_adams",
    "torchdiffeq.implicit_adams",
    "torchdiffeq.fixed_adams",
]

TORCHDIFFEQ = "torchdiffeq."
"""What the names of torchdiffeq's solvers begin with here."""

FIXED_STEP = {"euler", "midpoint", "heun2", "heun3", "rk4", "explicit_adams", "implicit_adams", "fixed_adams"}
"""The solvers, without that beginning, whose steps are of one size; the others choose their own."""

SERVED_SOLVER = SolverSettings(rtol=1e-6, atol=1e-6, max_steps=200_000)
"""Of bundles."""


class FlowConfig(Section):
    """How training computes the adaptation and its meta-gradients. Bundles and validation always use the served solver.

    Attributes:
        method: "adjoint", or "forward", the paper's forward sensitivity; see `training.gradient_flow`.
        solver: "dopri5" or "euler", compiled; with method "forward" also torchdiffeq.NAME, any solver of torchdiffeq.
        step_size: of a solver of equal steps, in flow time.
        rtol, atol: of a solver that chooses its steps; null: the defaults of `training.gradient_flow`.
    """

    method: Method = "adjoint"
    solver: SolverName = "dopri5"
    step_size: Positive | None = None
    rtol: Positive | None = None
    atol: Positive | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_solver(self.method, self.solver, self.step_size)
        return self


def check_solver(method: str, solver: str, step_size: float | None) -> None:
    """Refuse a solver that the method does not take, and a step size where there is none or one is missing.

    Raises:
        ValueError: the message says what is allowed.
    """
    name = solver.removeprefix(TORCHDIFFEQ)
    if name != solver and method != "forward":
        raise ValueError(f'solver "{solver}" is for method "forward", got method {method!r}')
    if name not in FIXED_STEP:
        if step_size is not None:
            raise ValueError(f'step_size is for a solver of equal steps such as "euler"; {name} chooses its own steps')
    elif step_size is None or not 0.0 < step_size < math.inf:
        raise ValueError(f'solver="{solver}" needs a step_size > 0 in flow time, got {step_size}')
