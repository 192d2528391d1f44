"""Time and peak memory of one contender on one case, in a process of its own.

    python -m benchmarks.measure '{"contender": "adjoint", "case": {...}, "repeats": 5, "limit_s": 15, ...}'

Prints one line of JSON: milliseconds of every run once they have settled, the peak of memory during
a run above what the process held before it (MB), and, on embeddings, the error of the gradients.
"""

import ctypes
import gc
import json
import resource
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks import processes
from benchmarks.contenders import TASKS, Case, Run, build, reference
from training.memory import keep_freed_memory

_WARM_UP = Case("embeddings", 2, 1, 100, d=16)

# A run of a millisecond takes half as long again until caches, allocator and clock have settled.
_SETTLING_S = 0.25


def extra_memory(run: Run) -> tuple[float, float, dict[str, np.ndarray]]:
    """Peak of resident memory during a run over that before, MB; its milliseconds and result."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    processes.start_peak_anew()
    before = processes.memory()
    began = time.perf_counter()
    result = run()
    milliseconds = 1e3 * (time.perf_counter() - began)
    return processes.memory("VmHWM") - before, milliseconds, result


def timed(run: Run, first: float, repeats: int, limit_s: float) -> list[float]:
    """Milliseconds of repeated runs, as long as they do not take more than the limit together.

    Args:
        first: milliseconds of a run before. Short ones are repeated until they have settled.
    """
    began = time.perf_counter()
    while 1e-3 * first < _SETTLING_S and time.perf_counter() - began < _SETTLING_S:
        run()
    milliseconds: list[float] = []
    while len(milliseconds) < repeats and sum(milliseconds) <= 1e3 * limit_s:
        began = time.perf_counter()
        run()
        milliseconds.append(1e3 * (time.perf_counter() - began))
    return milliseconds


def relative_errors(gradients: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> dict[str, float]:
    """Norm of the difference over the norm of the expected gradient, by name."""
    return {
        name: float(np.linalg.norm(gradients[name] - value) / np.linalg.norm(value))
        for name, value in expected.items()
        if name in gradients
    }


def main() -> None:
    """Measure what the first argument says."""
    job: dict[str, Any] = json.loads(sys.argv[1])
    case = Case(**job["case"])
    torch.set_num_threads(job["threads"])
    most = int(1e6 * job["limit_mb"])
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))  # an allocation beyond it fails, here alone
    if job["contender"] not in {"JAX forward", "MAML", "MAML, checkpoints", "iMAML"}:
        build(job["contender"], _WARM_UP)()  # compiled code and buffers that stay
    run = build(job["contender"], case)
    if case.on == "images":
        run_once = build("adjoint", replace(case, steps=1))
        run_once()  # the convolutions' own buffers
    extra, first, gradients = extra_memory(run)
    if first < 1e3 * job["limit_s"]:
        extra, _, _ = extra_memory(run)  # without what stays from the first
    keep_freed_memory()  # as comln-train does
    milliseconds = [first] if first > 1e3 * job["limit_s"] else timed(run, first, job["repeats"], job["limit_s"])
    tasks = TASKS.get(job["contender"], 1)
    answer: dict[str, Any] = {"ms": [ms / tasks for ms in milliseconds], "extra_mb": extra}
    if job["check"]:
        answer["errors"] = relative_errors(gradients, reference(case))
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
