"""Episodes on all cores."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from threadpoolctl import threadpool_limits

from comln_serve.machine import usable_cpus

_Result = TypeVar("_Result")


def on_all_cores(function: Callable[[int], _Result], episodes: int) -> list[_Result]:
    """`function(number)` of every episode, in their order."""
    # The matrix products are small: BLAS threads would spend more time waiting than computing.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(usable_cpus()) as pool:
        return list(pool.map(function, range(episodes)))
