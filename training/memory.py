"""Settings of the C library's allocator that make training on CPU faster."""

import ctypes
import sys
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Let glibc reuse freed buffers instead of returning them to the system after every update.

    Every update allocates and frees the same tens of megabytes; without this, each page is faulted
    in again every time. Does nothing with other C libraries.
    """
    mallopt = _glibc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def trim_freed_memory() -> None:
    """Return free memory to the system; to be called every few updates.

    Batches of varying sizes fragment the heap: without this, memory grew to several times what an
    update needs. Does nothing with other C libraries.
    """
    malloc_trim = _glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _glibc(name: str) -> Any:
    """A function of the C library; None if it has no function of that name."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), name, None)  # musl has neither of the two
