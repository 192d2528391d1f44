"""What this process may use of the machine it runs on."""

import ctypes
import gc
import os
import sys
from pathlib import Path

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 8 * 2**20


def usable_cpus() -> int:
    """CPUs this process may really use: its affinity, bounded by the container's quota; >= 1."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        count = os.cpu_count() or 1
    quota = _cgroup_quota(Path("/sys/fs/cgroup"))
    return max(1, min(count, round(quota)) if quota is not None else count)


def keep_what_is_there() -> None:
    """Keep all objects there are now out of garbage collection; for servers, once they are warm.

    They are a quarter of a million that live as long as the process. Going through them took a
    tenth of a second, in which nothing else ran, every few thousand requests.
    """
    gc.collect()
    gc.freeze()


def return_large_memory() -> None:
    """Have glibc give what is large back to the system as soon as it is freed; for servers.

    Left to itself it learns from the first large image to keep the memory of all that follow: after
    a few of 64 million pixels a server was left with 2.5 GB. Does nothing elsewhere than on glibc.
    """
    if sys.platform.startswith("linux"):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def _cgroup_quota(root: Path) -> float | None:
    """CPUs granted by the control group (version 2, then 1), None when unlimited."""
    try:
        granted, period = (root / "cpu.max").read_text().split()
        return None if granted == "max" else int(granted) / int(period)
    except (OSError, ValueError):
        pass
    try:
        granted_us = int((root / "cpu/cpu.cfs_quota_us").read_text())
        period_us = int((root / "cpu/cpu.cfs_period_us").read_text())
        return granted_us / period_us if granted_us > 0 else None
    except (OSError, ValueError):
        return None
