"""Gradient-flow core: NumPy and compiled kernels, no torch. Shared by server and trainer."""

from comln_serve.flow.integration import FlowError, Integration
from comln_serve.flow.problem import (
    balanced_weights,
    check_problem,
    check_tolerances,
    effective_horizon,
    reduced_is_cheaper,
    uniform_weights,
)
from comln_serve.flow.solve import FlowSolution, solve_flow

__all__ = [
    "FlowError",
    "FlowSolution",
    "Integration",
    "balanced_weights",
    "check_problem",
    "check_tolerances",
    "effective_horizon",
    "reduced_is_cheaper",
    "solve_flow",
    "uniform_weights",
]
