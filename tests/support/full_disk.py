"""A disk without room."""

import errno
import os
from typing import NoReturn


def full_disk(*_: object, **__: object) -> NoReturn:
    """In place of a function that writes: the error that it has on a full disk, which names no file."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
