"""Compiles the solver before the first request needs it."""

import logging
import time
from typing import Any

import numpy as np
from numba.core.event import Listener, install_listener

from comln_serve.bundle import Head, SolverSettings

logger = logging.getLogger(__name__)


def compile_flow() -> None:
    """Solve a small task in both formulations, so that Numba compiles or loads the solver.

    Logs when compiling begins and how long it took; nothing if all compiled code could be loaded.
    """
    head = Head("zero", 1.0, 0.0, "uniform", SolverSettings(1e-3, 1e-3, 1000))
    began = time.monotonic()
    announcement = _Announcement()
    with install_listener("numba:compile", announcement):
        for features in (1, 8):
            phi = np.linspace(-1.0, 1.0, 4 * features, dtype=np.float32).reshape(4, features)
            head.adapt(phi, np.array([0, 0, 1, 1]), 2)
    if announcement.made:
        logger.info("compiled the solver in %.1f s", time.monotonic() - began)


class _Announcement(Listener):
    """Logs once, when Numba starts to compile the first function.

    Attributes:
        made: whether anything was compiled.
    """

    def __init__(self) -> None:
        self.made = False

    def on_start(self, event: Any) -> None:  # noqa: ARG002 (Numba's signature)
        if not self.made:
            self.made = True
            logger.info(
                "compiling the solver for this machine: 10 to 20 s of one CPU, once; later starts load the result"
            )

    def on_end(self, event: Any) -> None:
        """Do nothing: a function is compiled within the compilation of its caller."""


if __name__ == "__main__":  # when a container image is built
    compile_flow()
