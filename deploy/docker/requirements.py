"""What an image installs, a requirement a line: `requirements.py common|cpu|cuda [pyproject.toml]`.

The server depends on `onnxruntime-gpu` where that exists, for it runs everywhere; an image for
CPUs takes `onnxruntime` instead, a tenth of the size. The two share one import name, so that
installing the second beside the first breaks both: an image gets the lines in common, then the
server without its dependencies, then its runtime. With them comes what sends traces. They are
derived from pyproject.toml when the image is built, and cannot drift.
"""

import re
import sys
import tomllib
from pathlib import Path

RUNTIMES = {"onnxruntime", "onnxruntime-gpu"}


def requirements(variant: str, pyproject: Path) -> list[str]:
    """The server's dependencies but the runtime ("common"), or what one variant adds.

    Raises:
        SystemExit: another variant, or pyproject.toml no longer names both runtimes.
    """
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    others = [line for line in project["dependencies"] if _name(line) not in RUNTIMES]
    drivers = project["optional-dependencies"]["postgres"]
    candidates = {
        "common": [*others, *drivers, *project["optional-dependencies"]["otel"]],
        "cpu": [line for line in project["dependencies"] if _name(line) == "onnxruntime"],
        "cuda": project["optional-dependencies"]["cuda"],
    }
    if variant not in candidates:
        raise SystemExit(f"received {variant!r}; the variants are {', '.join(candidates)}")
    if len(project["dependencies"]) != len(others) + len(RUNTIMES) or len(candidates["cpu"]) != 1:
        raise SystemExit(f"{pyproject} must name each of {sorted(RUNTIMES)} once")
    # Without its marker: on a machine it is not made for, building the image has to fail.
    return [line.partition(";")[0].strip() if _name(line) in RUNTIMES else line for line in candidates[variant]]


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return "" if found is None else found[0].lower()


if __name__ == "__main__":
    print(*requirements(sys.argv[1], Path((sys.argv[2:] or ["pyproject.toml"])[0])), sep="\n")
