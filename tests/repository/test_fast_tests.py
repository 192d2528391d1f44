"""`make test-fast` loads neither torch nor Ray, which would take seconds in each of its processes."""

import ast
import re
from pathlib import Path

from tests.support.paths import REPOSITORY

HEAVY = {"torch", "torchvision", "ray", "training", "benchmarks"}


def imported(path: Path) -> set[str]:
    """The modules a file imports when it is loaded, as dotted names."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def loaded(path: Path, seen: set[Path]) -> set[str]:
    """The packages a test file loads, by itself or through other files of the tests."""
    if path in seen:
        return set()
    seen.add(path)
    found: set[str] = set()
    for name in imported(path):
        file = REPOSITORY.joinpath(*name.split(".")).with_suffix(".py")
        found |= loaded(file, seen) if name.startswith("tests.") and file.is_file() else {name.partition(".")[0]}
    return found


def test_the_fast_tests_load_neither_torch_nor_ray() -> None:
    (listed,) = re.findall(
        r"^FAST := \$\(addprefix tests/,(.+)\)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE
    )
    for folder in listed.split():
        files = sorted((REPOSITORY / "tests" / folder).glob("test_*.py"))
        assert files, folder
        for file in files:
            assert loaded(file, set()).isdisjoint(HEAVY), file
    assert "training" in loaded(REPOSITORY / "tests" / "support" / "tiny.py", set())
