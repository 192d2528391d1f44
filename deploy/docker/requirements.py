"""What an image installs, a requirement a line: `requirements.py common|cpu|cuda [pyproject.toml]`.

The two wheels of ONNX Runtime share one import name, so an image gets the lines in common, then the server without its
dependencies, then one runtime. With them come the database's driver and what sends traces. They are derived from
pyproject.toml when the image is built, and cannot drift.
"""

import sys
import tomllib
from pathlib import Path


def requirements(variant: str, pyproject: Path) -> list[str]:
    """The server's dependencies ("common"), or the runtime of one variant.

    Raises:
        SystemExit: another variant.
    """
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    candidates = {
        "common": [*project["dependencies"], *extras["postgres"], *extras["otel"]],
        "cpu": extras["cpu"],
        "cuda": extras["cuda"],
    }
    if variant not in candidates:
        raise SystemExit(f"received {variant!r}; the variants are {', '.join(candidates)}")
    return candidates[variant]


if __name__ == "__main__":
    print(*requirements(sys.argv[1], Path((sys.argv[2:] or ["pyproject.toml"])[0])), sep="\n")
