"""Forward sensitivity in JAX, the formulation of the paper's Code Snippet 1, for comparison.

The whole state (s, B, z) goes through `jax.experimental.ode.odeint` in float32 (JAX's default), at
its default tolerances of 1.4e-8, compiled. Needs the package jax.
"""

# pyright: reportMissingImports=false, reportMissingParameterType=false
# pyright: reportUnknownParameterType=false

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.ode import odeint

DEFAULT_TOLERANCE = 1.4e-8


class ForwardSensitivity:
    """Meta-gradients of <V, W(T)> by the whole (s, B, z) system in one odeint."""

    def __init__(self, M: int, N: int, d: int, tolerance: float = DEFAULT_TOLERANCE) -> None:
        def gradient(phi, W0, Y, T, V):  # type: ignore[no-untyped-def]
            K, L0 = phi @ phi.T, phi @ W0.T
            start = (jnp.zeros((M, N)), jnp.zeros((M, M, N, N)), jnp.zeros((M, M, M, N)))
            path = odeint(_field, start, jnp.array([0.0, T]), K, L0, Y, rtol=tolerance, atol=tolerance)
            s, B, z = (block[-1] for block in path)
            Vphi = phi @ V.T
            C = jnp.einsum("ia,ijab->jb", Vphi, B)
            D = jnp.einsum("ijma,ia->mj", z, Vphi)
            dT = -jnp.sum(Vphi * (jax.nn.softmax(L0 - K @ s) - Y)) / M
            return -(s @ V + C @ W0 + D @ phi), V - C.T @ phi, dT

        shapes = ((M, d), (N, d), (M, N), (), (N, d))
        arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        self._gradient = jax.jit(gradient).lower(*arguments).compile()

    def __call__(
        self, phi: np.ndarray, W0: np.ndarray, Y: np.ndarray, T: float, V: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """phi (M, d), W0 (N, d), Y (M, N), T, V (N, d) -> dphi (M, d), dW0 (N, d), dT."""
        narrow = [jnp.asarray(x, dtype=jnp.float32) for x in (phi, W0, Y, T, V)]
        return tuple(np.asarray(x) for x in jax.block_until_ready(self._gradient(*narrow)))


def _field(state, _t, K, L0, Y):  # type: ignore[no-untyped-def]
    """Right-hand side of Propositions 1 to 3 at lambda = 0."""
    s, B, z = state
    M = len(L0)
    p = jax.nn.softmax(L0 - K @ s)
    A = (jax.vmap(jnp.diag)(p) - p[:, :, None] * p[:, None, :]) / M
    same = jnp.eye(M)
    dB = same[:, :, None, None] * A[:, None]
    dB -= jnp.einsum("iab,ijbc->ijac", A, jnp.einsum("im,mjbc->ijbc", K, B))
    inner = same[:, :, None, None] * s[None, None] + same[:, None, :, None] * s[None, :, None]
    inner += jnp.einsum("ik,kjma->ijma", K, z)
    return (p - Y) / M, dB, -jnp.einsum("iab,ijmb->ijma", A, inner)
