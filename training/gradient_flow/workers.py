"""Threads for the compiled kernels, which release the interpreter lock."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from comln_serve.machine import usable_cpus

_Result = TypeVar("_Result")

_thread = threading.local()  # .at_work: whether this thread is running a map


def thread_map(function: Callable[..., _Result], *arguments: Iterable[Any]) -> list[_Result]:
    """`list(map(function, *arguments))` with a thread for each usable core.

    The calling thread works too, and every thread takes the next call when it is free. Submitting work takes a tenth of
    the time of a small task, so it is done once per thread, not once per call. A single call runs in the calling
    thread. So do the calls of a nested map: all cores are busy then, and waiting for the pool could deadlock.

    After a call has failed, no further calls are started, and the error of the first failed call in the list is raised.
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
        if not helper.cancel():  # it has started
            helper.result()
    if errors:
        raise errors[min(errors)]
    return results


@cache
def _pool() -> tuple[ThreadPoolExecutor, int]:
    """A pool of threads for the cores besides the calling thread's, and their number."""
    others = usable_cpus() - 1
    return ThreadPoolExecutor(max(1, others), thread_name_prefix="gradient-flow"), others
