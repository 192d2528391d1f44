"""Exact meta-gradients of adaptation by gradient flow, for torch autograd."""

from training.config.flow import Method, SolverName
from training.gradient_flow.operation import DEFAULT_MAX_STEPS, gradient_flow

__all__ = ["DEFAULT_MAX_STEPS", "Method", "SolverName", "gradient_flow"]
