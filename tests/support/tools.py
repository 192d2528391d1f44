"""Programs that tests run, if they are installed: targets of the Makefile put them beside Python."""

import os
import shutil
import sys
from pathlib import Path

import pytest


def find_tool(name: str) -> str | None:
    """The path of a program, of the virtual environment or installed system-wide; None: there is none."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return shutil.which(name, path=os.pathsep.join(folders))


def tool(name: str, *, target: str = "ops-tools") -> str:
    """The path of a program. Skips the test if there is none, and says which target of the Makefile installs it."""
    found = find_tool(name)
    if found is None:
        pytest.skip(f"{name} is not installed: `make {target}`")
    return found
