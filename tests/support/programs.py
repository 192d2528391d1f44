"""Python in another process, until it ends."""

import os
import subprocess
import sys

from tests.support.paths import REPOSITORY


def python(*arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    """What Python with these arguments prints in the repository, and its exit status.

    Args:
        environment: variables beside those of this process.
    """
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
