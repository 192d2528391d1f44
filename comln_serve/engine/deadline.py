"""A flag that is raised after a time, as compiled code can read it."""

from collections.abc import Generator
from contextlib import contextmanager
from threading import Timer

import numpy as np
from numpy.typing import NDArray


@contextmanager
def raised_after(seconds: float) -> Generator[NDArray[np.bool_], None, None]:
    """(1,) array that another thread sets to True after that time, unless the block is over."""
    flag = np.zeros(1, dtype=np.bool_)
    timer = Timer(seconds, flag.fill, (True,))
    timer.daemon = True
    timer.start()
    try:
        yield flag
    finally:
        timer.cancel()
