"""The Dormand-Prince 5(4) pair as data.

Source of the coefficients: J. R. Dormand and P. J. Prince, "A family of embedded Runge-Kutta
formulae", Journal of Computational and Applied Mathematics 6 (1980), table 2 (RK5(4)7M).

The flow is autonomous; the nodes c are needed only for the integrator's own time (`kernels.pace`).
"""

from fractions import Fraction as F

import numpy as np

_A = [
    [],
    [F(1, 5)],
    [F(3, 40), F(9, 40)],
    [F(44, 45), F(-56, 15), F(32, 9)],
    [F(19372, 6561), F(-25360, 2187), F(64448, 6561), F(-212, 729)],
    [F(9017, 3168), F(-355, 33), F(46732, 5247), F(49, 176), F(-5103, 18656)],
    [F(35, 384), F(0), F(500, 1113), F(125, 192), F(-2187, 6784), F(11, 84)],
]
_B5 = [*_A[6], F(0)]
_B4 = [F(5179, 57600), F(0), F(7571, 16695), F(393, 640), F(-92097, 339200), F(187, 2100), F(1, 40)]
_C = [F(0), F(1, 5), F(3, 10), F(4, 5), F(8, 9), F(1), F(1)]

# Coefficients of the continuous extension of order 4: E. Hairer, S. P. Norsett, G. Wanner, "Solving
# Ordinary Differential Equations I", section II.6, as in their program DOPRI5.
_D = [
    F(-12715105075, 11282082432),
    F(0),
    F(87487479700, 32700410799),
    F(-10690763975, 1880347072),
    F(701980252875, 199316789632),
    F(-1453857185, 822651844),
    F(69997945, 29380423),
]

STAGES = 7


def _lower_triangle() -> np.ndarray:
    matrix = np.zeros((STAGES, STAGES))
    for i, row in enumerate(_A):
        matrix[i, : len(row)] = [float(a) for a in row]
    return matrix


A: np.ndarray = _lower_triangle()
"""(7, 7) strictly lower triangular; row 6 holds the weights of the solution (FSAL)."""

NODES: np.ndarray = np.array([float(c) for c in _C])
"""(7,) position of each stage within a step, from 0 to 1."""

E: np.ndarray = np.array([float(b5 - b4) for b5, b4 in zip(_B5, _B4, strict=True)])
"""(7,) weights of the local error estimate, b5 - b4."""

D: np.ndarray = np.array([float(d) for d in _D])
"""(7,) terms of the continuous extension beyond the step's weights; see `kernels.state_inside`."""

A.setflags(write=False)
D.setflags(write=False)
NODES.setflags(write=False)
E.setflags(write=False)
