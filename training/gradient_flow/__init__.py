"""Exact meta-gradients of adaptation by gradient flow, for torch autograd."""

from training.gradient_flow.operation import (
    DEFAULT_ATOL,
    DEFAULT_MAX_STEPS,
    DEFAULT_RTOL,
    gradient_flow,
)

__all__ = ["DEFAULT_ATOL", "DEFAULT_MAX_STEPS", "DEFAULT_RTOL", "gradient_flow"]
