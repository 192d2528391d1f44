"""Deadlines raise each flag at its own time, and none after its block has ended."""

import threading
import time

import numpy as np
from numpy.typing import NDArray

from comln_serve.engine.adapting.fitting import raised_after
from tests.support.waiting import wait_until

LONG, SOON = 3600.0, 0.02


def raised(flag: NDArray[np.bool_]) -> bool:
    """Whether it is raised within half a minute."""
    end = time.monotonic() + 30
    while not flag[0] and time.monotonic() < end:
        time.sleep(0.002)
    return bool(flag[0])


def test_each_flag_is_raised_at_its_own_time() -> None:
    with raised_after(LONG) as long:
        time.sleep(0.05)
        began = time.monotonic()
        with raised_after(SOON) as soon, raised_after(4 * SOON) as later:
            assert raised(soon)
            assert time.monotonic() - began >= SOON
            assert raised(later)
            assert time.monotonic() - began >= 4 * SOON
        assert not long[0]


def test_a_flag_whose_block_is_over_stays_down() -> None:
    with raised_after(SOON) as over:
        pass
    with raised_after(2 * SOON) as witness:
        assert raised(witness)
    assert not over[0]


def test_a_block_that_is_over_leaves_no_thread() -> None:
    threads = threading.active_count()
    with raised_after(LONG):
        pass
    wait_until(lambda: threading.active_count() <= threads)
