"""Threads for the compiled kernels, which release the interpreter lock."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from comln_serve.machine import usable_cpus

_Result = TypeVar("_Result")

_NAME = "gradient-flow"


def thread_map(function: Callable[..., _Result], *arguments: Iterable[Any]) -> list[_Result]:
    """`list(map(function, *arguments))` with a thread for each usable core.

    A single call stays in this thread: the hand-over would cost a tenth of a small task. So does a
    map within a map: all cores are at work then, and waiting for them could be for ever.
    """
    calls = list(zip(*arguments, strict=True))
    if len(calls) == 1 or threading.current_thread().name.startswith(_NAME):
        return [function(*call) for call in calls]
    return list(_pool().map(lambda call: function(*call), calls))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(usable_cpus(), thread_name_prefix=_NAME)
