"""A C-library setting that training on CPU profits from."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Let glibc reuse freed buffers instead of returning them to the system after every update.

    A training step allocates and frees the same tens of megabytes again and again; without this
    each page is faulted in anew. Does nothing elsewhere than on glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
