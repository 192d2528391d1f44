"""What the C library does with freed memory, where training on CPU profits from a say in it."""

import ctypes
import sys
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Let glibc reuse freed buffers instead of returning them to the system after every update.

    A training step allocates and frees the same tens of megabytes again and again; without this
    each page is faulted in anew. Does nothing elsewhere than on glibc.
    """
    mallopt = _glibc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def trim_freed_memory() -> None:
    """Return what is free to the system, once in a while.

    Batches of ever other sizes leave holes that the next one does not fit in: kept for good, they
    grew to several times what an update needs.
    """
    malloc_trim = _glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _glibc(name: str) -> Any:
    """A function of the C library, or None where it has none of that name."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), name, None)  # musl has neither
