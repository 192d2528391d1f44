"""Gradient-flow core: NumPy and compiled kernels, no torch. Shared by server and trainer."""

from comln_serve.flow.solve import (
    DEFAULT_ATOL,
    DEFAULT_MAX_STEPS,
    DEFAULT_RTOL,
    FlowError,
    FlowSolution,
    ReducedTrajectory,
    balanced_weights,
    effective_horizon,
    solve_flow,
    solve_reduced,
    uniform_weights,
)

__all__ = [
    "DEFAULT_ATOL",
    "DEFAULT_MAX_STEPS",
    "DEFAULT_RTOL",
    "FlowError",
    "FlowSolution",
    "ReducedTrajectory",
    "balanced_weights",
    "effective_horizon",
    "solve_flow",
    "solve_reduced",
    "uniform_weights",
]
