"""Threads for the compiled kernels, which release the interpreter lock."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from comln_serve.machine import usable_cpus

_Result = TypeVar("_Result")

_thread = threading.local()  # .at_work: whether this thread is within a map


def thread_map(function: Callable[..., _Result], *arguments: Iterable[Any]) -> list[_Result]:
    """`list(map(function, *arguments))` with a thread for each usable core.

    The calling thread works too, and every thread takes the next call when it is free. Handing work
    over costs a tenth of a small task: it is done once a thread, not once a call. A single call
    stays in this thread. So does a map within a map: all cores are at work then, and waiting for
    them could be for ever.

    When calls fail, no new ones are begun, and the error of the first of them is raised.
    """
    calls = list(zip(*arguments, strict=True))
    if len(calls) <= 1 or getattr(_thread, "at_work", False):
        return [function(*call) for call in calls]
    results: list[Any] = [None] * len(calls)
    errors: dict[int, BaseException] = {}
    positions = iter(range(len(calls)))

    def work() -> None:
        _thread.at_work = True
        for i in positions:
            try:
                results[i] = function(*calls[i])
            except BaseException as error:  # noqa: BLE001 (it is raised below)
                errors[i] = error
            if errors:
                break
        _thread.at_work = False

    pool, others = _pool()
    helpers = [pool.submit(work) for _ in range(min(others, len(calls) - 1))]
    work()
    for helper in helpers:
        if not helper.cancel():  # it has begun
            helper.result()
    if errors:
        raise errors[min(errors)]
    return results


@cache
def _pool() -> tuple[ThreadPoolExecutor, int]:
    """Threads for the cores that the calling thread leaves free, and their number."""
    others = usable_cpus() - 1
    return ThreadPoolExecutor(max(1, others), thread_name_prefix="gradient-flow"), others
