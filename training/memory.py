"""Settings of the C library's allocator that make training on CPU faster."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Let glibc reuse freed buffers instead of returning them to the system after every update.

    Every update allocates and frees the same tens of megabytes; without this, each page is faulted
    in again every time. Does nothing with other C libraries.
    """
    _call("mallopt", _M_MMAP_MAX, 0)
    _call("mallopt", _M_TRIM_THRESHOLD, 2**31 - 1)


def trim_freed_memory() -> None:
    """Return free memory to the system; to be called every few updates.

    Batches of varying sizes fragment the heap: without this, memory grew to several times what an
    update needs. Does nothing with other C libraries.
    """
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    """Call a function of the C library, if it is one that has it; musl has neither of the two."""
    if sys.platform.startswith("linux") and (function := getattr(ctypes.CDLL(None), name, None)) is not None:
        function(*arguments)
