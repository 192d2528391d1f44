"""Dependencies point one way, and the server carries none of the trainer's."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

PACKAGE = "comln_serve"
TRAINER_ONLY = {
    "torch",
    "torchvision",
    "torchdiffeq",
    "training",
    "onnx",
    "onnxscript",
    "sklearn",
    "matplotlib",
    "timm",
}
# What each layer may not import. Lower layers know nothing of those above.
ABOVE = {
    "api": {"ray_app", "server", "cli"},
    # All of the server; `client/local.py`, which runs it in the process, is exempt below.
    "client": {
        "api",
        "bundle",
        "cli",
        "comln",
        "configuration",
        "domain",
        "engine",
        "errors",
        "export",
        "flow",
        "imaging",
        "key_commands",
        "logs",
        "machine",
        "ray_app",
        "report",
        "security",
        "server",
        "short_memory",
        "storage",
    },
    "bundle": {"api", "engine", "export", "report", "storage", "configuration"},
    "configuration": {"api", "engine", "export", "report", "bundle", "storage", "flow", "server"},
    "domain": {"api", "engine", "export", "report", "bundle", "storage", "imaging", "flow", "configuration"},
    "engine": {"api", "export", "ray_app", "server"},
    "errors": {"api", "engine", "export", "report", "bundle", "storage", "imaging", "flow", "configuration"},
    "export": {"api", "engine", "storage", "flow"},
    "flow": {"api", "engine", "export", "report", "bundle", "storage", "imaging", "configuration", "domain"},
    "imaging": {"api", "engine", "export", "report", "bundle", "storage", "flow", "errors", "configuration", "domain"},
    "ray_app": {"cli", "server"},
    "report": {"api", "engine", "export", "storage", "imaging", "configuration"},
    "security": {
        "api",
        "engine",
        "export",
        "report",
        "bundle",
        "storage",
        "imaging",
        "flow",
        "configuration",
        "domain",
    },
    "server": {"cli", "engine", "ray_app", "storage"},
    "storage": {"api", "engine", "export", "report", "bundle", "imaging", "flow", "configuration"},
}
# For `comln --local`; a test in tests/client holds that it imports the server only when called.
RUNS_THE_SERVER = REPOSITORY / PACKAGE / "client" / "local.py"
MODULES = sorted((REPOSITORY / PACKAGE).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Every module a file imports, anywhere in it, as an absolute dotted name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports would escape this check"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def test_importing_the_server_loads_neither_trainer_nor_ray() -> None:
    """In a process of its own: this one has long imported torch."""
    unwanted = TRAINER_ONLY | {"ray"}
    script = (
        "import sys, comln_serve.cli\n"
        f"print(*sorted({unwanted!r} & {{name.partition('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_the_server_never_imports_the_trainer(path: Path) -> None:
    """Exporting takes `onnx`, once it is asked for; the test above holds that it waits. The client's estimator is
    one of scikit-learn; nothing imports it.
    """
    allowed = {"onnx"} if path.parent == REPOSITORY / PACKAGE / "export" else set[str]()
    if path == REPOSITORY / PACKAGE / "client" / "estimator.py":
        allowed = {"sklearn"}
    found = {name.partition(".")[0] for name in imports(path)}
    assert found.isdisjoint(TRAINER_ONLY - allowed)


@pytest.mark.parametrize("layer", sorted(ABOVE))
def test_layers_point_one_way(layer: str) -> None:
    root = REPOSITORY / PACKAGE
    files = sorted((root / layer).rglob("*.py")) if (root / layer).is_dir() else [root / f"{layer}.py"]
    assert files
    forbidden = tuple(f"{PACKAGE}.{name}" for name in ABOVE[layer])
    found = [
        f"{name_of(path)} imports {name}"
        for path in files
        if path != RUNS_THE_SERVER
        for name in imports(path)
        if any(name == module or name.startswith(f"{module}.") for module in forbidden)
    ]
    assert found == []


def test_the_server_knows_nothing_of_its_client() -> None:
    found = [
        name_of(path)
        for path in MODULES
        if path.relative_to(REPOSITORY / PACKAGE).parts[0] not in ("client", "comln.py")
        for name in imports(path)
        if name.startswith(f"{PACKAGE}.client")
    ]
    assert found == []


def test_the_client_may_import_nothing_else_of_the_package() -> None:
    parts = {path.relative_to(REPOSITORY / PACKAGE).parts[0].removesuffix(".py") for path in MODULES}
    assert ABOVE["client"] == parts - {"client", "__init__"}


def test_the_table_above_names_every_layer() -> None:
    """A new folder has to take its place in the order."""
    inside = [path.relative_to(REPOSITORY / PACKAGE) for path in MODULES]
    folders = {path.parts[0] for path in inside if len(path.parts) > 1}
    assert folders <= set(ABOVE)
