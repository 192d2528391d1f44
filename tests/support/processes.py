"""What Linux tells of a process in /proc, and children of the test's own."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads what Linux shows in /proc")

# Newer Pythons warn of threads beside a fork, and so does JAX where a test before imported it; the children of `forked`
# use none.
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", r"ignore:os\.fork\(\):RuntimeWarning")


def memory(process: int | str, field: str = "VmRSS") -> int:
    """Bytes in memory (VmRSS), or the most there were (VmHWM) since `forget_the_highest`."""
    status = Path(f"/proc/{process}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith(f"{field}:")]
    return 1024 * int(line.split()[1])


def forget_the_highest(process: int | str) -> int:
    """Let VmHWM begin anew; what is in memory now, in bytes."""
    Path(f"/proc/{process}/clear_refs").write_text("5")
    return memory(process)


def open_files_and_threads(process: int | str) -> tuple[int, int]:
    """Numbers of open files and of threads."""
    folder = Path("/proc") / str(process)
    return len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir()))


def children(process: int) -> list[int]:
    """The processes that its main thread has started and that it has not waited for."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def alive(process: int) -> bool:
    """Whether it exists and has not ended."""
    return Path(f"/proc/{process}").exists() and ") Z " not in Path(f"/proc/{process}/stat").read_text()


def forked(work: Callable[[], object]) -> int:
    """Run a function in a child of this process; its exit status."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - reported by the status
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
