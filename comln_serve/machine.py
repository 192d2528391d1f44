"""Resources of the machine: usable CPUs, what can embed, garbage collection, memory allocation."""

import ctypes
import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

# The setting `provider`, and what a backbone runs on by it.
Provider = Literal["auto", "cuda", "cpu", "openvino"]
RunsOn = Literal["cuda", "cpu", "openvino"]

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 8 * 2**20
_NEW_OBJECTS = 10_000  # before a garbage collection

# Resident memory of a server, and of each process more: docs/deployment.md, "Memory" and "Workers".
_FIRST_WORKER_BYTES = 400 * 2**20
_WORKER_BYTES = 150 * 2**20

_CGROUP = Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """Number of CPUs in this process's affinity, but no more than the container's quota; >= 1."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        count = os.cpu_count() or 1
    quota = _cgroup_quota(_CGROUP)
    return max(1, min(count, round(quota)) if quota is not None else count)


def cpus_of_each(processes: int) -> int:
    """Number of CPUs for each of several processes that divide the usable ones among them; >= 1."""
    return max(1, usable_cpus() // processes)


def suitable_workers(*, embedder: bool) -> int:
    """Number of processes that serve well on this machine: one for two CPUs, as far as memory allows.

    Args:
        embedder: whether one more embeds for them.
    """
    if not hasattr(os, "fork"):
        return 1
    spare = usable_memory() // 2 - _FIRST_WORKER_BYTES * (1 + embedder)
    return max(1, min(usable_cpus() // 2, spare // _WORKER_BYTES))


def usable_memory() -> int:
    """Bytes of memory of the machine, but no more than the container's limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in ("memory.max", "memory/memory.limit_in_bytes"):  # version 2, then 1
        with suppress(OSError, ValueError):  # absent, or "max"
            return min(machine, int((_CGROUP / file).read_text()))
    return machine


def has_vnni() -> bool:
    """Whether this is an x86 CPU that adds products of 8-bit integers in 32 bits, in one instruction."""
    # Of numba, which has imported it before where embeddings are computed: the first import takes a while.
    from llvmlite import binding  # noqa: PLC0415

    features = binding.get_host_cpu_features()
    return bool(features.get("avx512vnni") or features.get("avxvnni"))


def may_have_gpu() -> bool:
    """Whether a device node of a GPU exists: without one, loading CUDA's libraries only logs errors."""
    if os.name == "nt":
        return True
    return any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg"))


def allow_open_files() -> None:
    """Raise the number of files that this process may have open as far as it may itself. On Unix."""
    import resource  # noqa: PLC0415 - not on Windows

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def freeze_garbage_collector() -> None:
    """Exclude all existing objects from garbage collection, and look for garbage less often. For servers, once they
    are warm.

    A warm server has a quarter of a million objects that live as long as the process. Collecting
    over them stopped all threads for a tenth of a second every few thousand requests.

    Requests leave no cycles. Collecting after every 700 new objects, as Python does, looks through those of the
    requests in work each time, which took 5 % of the CPU time of a prediction.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)


def return_large_memory() -> None:
    """Make glibc return large blocks to the system when they are freed. For servers.

    By default glibc raises its threshold with the first large image and keeps the memory of later
    ones: after a few of 64 million pixels a server kept 2.5 GB. Does nothing without glibc.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def return_freed_memory() -> None:
    """Give memory that is free back to the system, wherever in glibc's heap it lies.

    By itself glibc gives back only what lies at the heap's end: after many bodies had trickled in, a server that used
    380 MB kept 945. Takes milliseconds. Does nothing without glibc.
    """
    malloc_trim = _of_glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _of_glibc(name: str) -> Callable[..., int] | None:
    """A function of glibc's allocator, or None if this process has another one, as with musl."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


def _cgroup_quota(root: Path) -> float | None:
    """CPU quota of the control group (version 2, then 1); None: unlimited."""
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError):  # absent, or "max"
            granted, period = map(int, " ".join((root / file).read_text() for file in files).split())
            return granted / period if granted > 0 else None
    return None
