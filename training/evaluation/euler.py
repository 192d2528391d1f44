"""The head adapted by gradient descent instead of the flow: explicit Euler on the reduced flow.

A step of size h in flow time changes W by exactly -h grad L(W), whether it is taken in W or in s
(W = W0 - s^T phi, Proposition 1). So n steps of size h are ANIL's inner loop with learning rate h,
and Euler's approximation of the flow up to T = n h.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle.head import Head
from comln_serve.bundle.views import as_examples
from training.evaluation.evaluate import Classify, linear
from training.flow_steps import ReducedProblem, Solver, march

# Steps whose states are in memory at a time; only the last state is used.
_CHUNK = 64


def descend(
    head: Head, phi: NDArray[np.float32], classes: NDArray[np.intp], ways: int, *, step_size: float, horizon: float
) -> NDArray[np.float64]:
    """Adapted classifier (N, d): `head`'s start after Euler steps up to `horizon`.

    Args:
        phi: (M, d) or (M, V, d) support embeddings. classes: (M,) class index of each. ways: N.
        step_size, horizon: in flow time; the last step is shorter if the horizon is not a multiple.

    Raises:
        FlowError: more steps than `head.solver.max_steps`, or steps too large for float64.
    """
    phi, classes = as_examples(phi, classes)
    phi64 = phi.astype(np.float64)
    W0 = head.initial_weights(phi, classes, ways)
    problem = ReducedProblem(
        K=phi64 @ phi64.T,
        L0=np.ascontiguousarray(W0 @ phi64.T),
        Y=np.ascontiguousarray(np.eye(ways)[:, classes]),
        w=head.example_weights(classes, ways),
        T=horizon,
        lam=head.regularisation,
    )
    solver = Solver("euler", rtol=None, atol=None, max_steps=head.solver.max_steps, step_size=step_size)
    s = np.zeros_like(problem.L0)
    for chunk in march(problem, solver, _CHUNK):
        s = chunk.end
    return W0 - s @ phi64


def descended(head: Head, *, step_size: float, horizon: float) -> Classify:
    """`descend` as a head that classifies queries."""

    return linear(partial(descend, head, step_size=step_size, horizon=horizon))
