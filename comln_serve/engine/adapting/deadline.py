"""Flags that are raised after a time and that compiled code can read."""

from collections.abc import Generator
from contextlib import contextmanager
from threading import Timer

import numpy as np
from numpy.typing import NDArray


@contextmanager
def raised_after(seconds: float) -> Generator[NDArray[np.bool_], None, None]:
    """A (1,) array that another thread sets to True after `seconds`, if the block still runs."""
    flag = np.zeros(1, dtype=np.bool_)
    timer = Timer(seconds, flag.fill, (True,))
    timer.daemon = True  # a process that ends does not wait for it
    timer.start()
    try:
        yield flag
    finally:
        timer.cancel()
