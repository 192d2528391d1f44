"""Only the first start on a machine compiles the flow, and its log says so."""

from pathlib import Path

import pytest

from tests.support.programs import python

PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
from comln_serve.engine.compilation import compile_flow
compile_flow()
"""


def start(cache: Path) -> list[str]:
    """The log lines of having the solver compiled, in a process of its own."""
    done = python("-c", PROGRAM, NUMBA_CACHE_DIR=str(cache))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_only_the_first_start_compiles_and_it_says_so(tmp_path: Path) -> None:
    began, ended = start(tmp_path)
    assert began.startswith("INFO:comln_serve.engine.compilation:compiling")
    assert ended.startswith("INFO:comln_serve.engine.compilation:compiled")
    assert start(tmp_path) == []
