"""Dependencies point one way, and the server carries none of the trainer's."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterable, Iterator
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
    "yaml",
}
# What each layer may not import. Lower layers know nothing of those above.
ABOVE = {
    "api": {"ray_app", "server", "cli"},
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
# The trainer's layers from the top: each may import those below it, not one beside it in its row.
TRAINER = (
    ("__main__",),
    ("entry",),
    ("cli",),
    ("commands",),
    ("bundles", "runs"),
    ("checkpoint", "evaluation"),
    ("model", "results"),
    ("backbones", "data", "gradient_flow"),
    ("flow_steps",),
    ("checkpoint_names", "config", "errors", "memory"),
)
# What the trainer takes from the server.
SHARED = (
    "__version__",
    "bundle",
    "engine.embedding.backbone",
    "engine.embedding.onnx_session",
    "errors",
    "flow",
    "imaging",
    "machine",
    "report",
    "streams",
    "unknown_names",
)


def modules(package: str) -> dict[str, Path]:
    """The files of a package by their dotted names."""
    files = sorted((REPOSITORY / package).rglob("*.py"))
    assert files
    return {
        ".".join(file.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): file for file in files
    }


SERVER_FILES = sorted(modules(PACKAGE).values())
# For `comln --local`; a test in tests/client holds that it imports the server only when called.
RUNS_THE_SERVER = REPOSITORY / PACKAGE / "client" / "local.py"


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


def files_of(package: str, layer: str) -> list[Path]:
    """The files of a layer, which is a folder or a file."""
    root = REPOSITORY / package
    files = sorted((root / layer).rglob("*.py")) if (root / layer).is_dir() else [root / f"{layer}.py"]
    assert files
    return files


def violations(files: list[Path], package: str, layers: Iterable[str]) -> list[str]:
    """The imports of these files that are of one of the layers."""
    forbidden = tuple(f"{package}.{layer}" for layer in layers)
    return [
        f"{name_of(path)} imports {name}"
        for path in files
        for name in imports(path)
        if any(name == module or name.startswith(f"{module}.") for module in forbidden)
    ]


def layers_of(package: str) -> set[str]:
    """Folders and files at the top of a package."""
    return {name.split(".")[1] for name in modules(package) if "." in name}


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


@pytest.mark.parametrize("path", SERVER_FILES, ids=name_of)
def test_the_server_never_imports_the_trainer(path: Path) -> None:
    """Export imports `onnx` inside the function that needs it; the test above checks that it is not loaded before.
    Nothing imports the estimator, which is one of scikit-learn.
    """
    allowed = {"onnx"} if path.parent == REPOSITORY / PACKAGE / "export" else set[str]()
    if path == REPOSITORY / PACKAGE / "client" / "estimator.py":
        allowed = {"sklearn"}
    found = {name.partition(".")[0] for name in imports(path)}
    assert found.isdisjoint(TRAINER_ONLY - allowed)


@pytest.mark.parametrize("layer", sorted(ABOVE))
def test_layers_point_one_way(layer: str) -> None:
    assert violations(files_of(PACKAGE, layer), PACKAGE, ABOVE[layer]) == []


def test_the_server_knows_nothing_of_its_client() -> None:
    found = [
        name_of(path)
        for path in SERVER_FILES
        if path.relative_to(REPOSITORY / PACKAGE).parts[0] not in ("client", "comln.py")
        for name in imports(path)
        if name.startswith(f"{PACKAGE}.client")
    ]
    assert found == []


def test_the_client_imports_nothing_else_of_the_package() -> None:
    files = [path for path in files_of(PACKAGE, "client") if path != RUNS_THE_SERVER]
    assert violations(files, PACKAGE, layers_of(PACKAGE) - {"client"}) == []


def test_the_table_of_the_server_names_every_folder() -> None:
    """A new folder has to take its place in the order."""
    folders = {layer for layer in layers_of(PACKAGE) if (REPOSITORY / PACKAGE / layer).is_dir()}
    assert folders <= {"client", *ABOVE}


@pytest.mark.parametrize("row", range(len(TRAINER)))
def test_layers_of_the_trainer_point_one_way(row: int) -> None:
    for layer in TRAINER[row]:
        forbidden = {other for others in TRAINER[: row + 1] for other in others} - {layer}
        assert violations(files_of("training", layer), "training", forbidden) == []


def test_the_table_of_the_trainer_names_every_layer() -> None:
    assert layers_of("training") == {layer for row in TRAINER for layer in row}


def test_the_trainer_imports_only_what_is_shared_of_the_server() -> None:
    allowed = tuple(f"{PACKAGE}.{name}" for name in SHARED)
    found = {
        f"{name_of(path)} imports {name}"
        for path in modules("training").values()
        for name in imports(path)
        if name.startswith(f"{PACKAGE}.")
        and not any(name == module or name.startswith(f"{module}.") for module in allowed)
        # `from comln_serve.engine.embedding.backbone import ...` is seen as its parents, too.
        and not any(module.startswith(f"{name}.") for module in allowed)
    }
    assert found == set()


def test_no_file_imports_itself_through_others() -> None:
    """Imports inside functions count, too: a circle that works thanks to their order is still one."""
    files = modules(PACKAGE) | modules("training")

    def imported(path: Path) -> Iterator[str]:
        """Unlike `imports`: `from package import module` is the module alone, not the package's __init__."""
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                parent = node.module if isinstance(node, ast.ImportFrom) else None
                name = f"{parent}.{alias.name}" if parent else alias.name
                yield name if name in files or parent is None else parent

    below = {name: set(imported(path)) & set(files) - {name} for name, path in files.items()}
    try:
        graphlib.TopologicalSorter(below).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"files import each other in a circle: {' <- '.join(error.args[1])}")
