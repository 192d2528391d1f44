"""Exact meta-gradients of adaptation by gradient flow, for torch autograd."""

from training.config.flow import Method
from training.gradient_flow.operation import gradient_flow

__all__ = ["Method", "gradient_flow"]
