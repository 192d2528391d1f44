"""Exact meta-gradients of adaptation by gradient flow, for torch autograd."""

from training.gradient_flow.operation import DEFAULT_MAX_STEPS, Method, gradient_flow
from training.gradient_flow.steps import SolverName

__all__ = ["DEFAULT_MAX_STEPS", "Method", "SolverName", "gradient_flow"]
