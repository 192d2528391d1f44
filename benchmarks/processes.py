"""What Linux says of a process: its memory, its CPU time and its children."""

import contextlib
import os
from pathlib import Path


def memory(field: str = "VmRSS", pid: int | None = None) -> float:
    """Resident memory in MB, or another field of the status of a process; None: of this one."""
    lines = _file("status", pid).read_text("ascii").splitlines()
    found = next((line for line in lines if line.startswith(f"{field}:")), None)
    if found is None:
        raise RuntimeError(f"the process has ended, or has no {field}")
    return float(found.split()[1]) / 1024


def start_peak_anew(pid: int | None = None) -> None:
    """Let the peak of memory, VmHWM, be that from now on."""
    _file("clear_refs", pid).write_text("5", encoding="ascii")


def proportional_memory(pid: int) -> float:
    """Memory in MB, shared pages divided among the processes that share them."""
    lines = _file("smaps_rollup", pid).read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def cpu_seconds(pid: int) -> float:
    """CPU time so far, user's and system's."""
    user, system = _file("stat", pid).read_text("ascii").rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """A process and its descendants: those that any thread of it or of them has started."""
    found = [pid]
    for one in found:  # grows meanwhile
        with contextlib.suppress(OSError):
            for thread in _file("task", one).iterdir():
                found += map(int, (thread / "children").read_text("ascii").split())
    return found


def _file(name: str, pid: int | None) -> Path:
    return Path("/proc") / ("self" if pid is None else str(pid)) / name
