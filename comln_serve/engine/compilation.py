"""Having the solver compiled before it is needed."""

import numpy as np

from comln_serve.bundle import Head, SolverSettings


def compile_flow() -> None:
    """Solve a small task in both formulations: Numba compiles, or loads what it compiled before."""
    head = Head("zero", 1.0, 0.0, "uniform", SolverSettings(1e-3, 1e-3, 1000))
    for features in (1, 8):
        phi = np.linspace(-1.0, 1.0, 4 * features, dtype=np.float32).reshape(4, features)
        head.adapt(phi, np.array([0, 0, 1, 1]), 2)
