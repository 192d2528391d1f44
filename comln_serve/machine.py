"""What this process may use of the machine it runs on."""

import gc
import os
from pathlib import Path


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
