"""The client can be imported where the server's dependencies are missing."""

import subprocess

import pytest

from tests.support.programs import python

SERVER_ONLY = {
    "alembic",
    "fastapi",
    "httptools",
    "multipart",
    "numba",
    "numpy",
    "onnx",
    "onnxruntime",
    "prometheus_client",
    "pydantic",
    "pydantic_settings",
    "safetensors",
    "sqlalchemy",
    "starlette",
    "threadpoolctl",
    "uvicorn",
}
WITHOUT = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {SERVER_ONLY | {"sklearn", "torch"}!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run(script: str) -> "subprocess.CompletedProcess[str]":
    return python("-c", WITHOUT + script)


@pytest.mark.parametrize("module", ["comln_serve.client", "comln_serve.client.commands", "comln_serve.client.local"])
def test_importing(module: str) -> None:
    done = run(f"import {module}; print(sorted(name for name in sys.modules if name.startswith('comln_serve')))")
    assert done.returncode == 0, done.stderr
    loaded = set(eval(done.stdout)) - {"comln_serve"}
    assert all(name.startswith("comln_serve.client") for name in loaded)


def test_using() -> None:
    """Up to the connection, images included."""
    done = run("""
from PIL import Image
from comln_serve.client import Client, NoAnswerError
try:
    Client("http://127.0.0.1:9", retry_seconds=0).predict([Image.new("RGB", (2000, 20))], "any")
except NoAnswerError as error:
    print(error)
""")
    assert done.stdout.startswith("no server can be reached at http://127.0.0.1:9"), done.stderr


def test_local_says_what_is_missing() -> None:
    done = run("""
sys.argv = ["comln", "models", "ls", "--local"]
from comln_serve.client.commands import main
main(prog_name="comln")
""")
    assert done.returncode == 2
    assert done.stderr.startswith("comln: --local needs the server, and ")
    assert "is not installed: pip install 'comln-serve[cpu]'" in done.stderr


def test_the_command_says_what_is_missing() -> None:
    """Where the server is installed without the extra."""
    script = """
import sys
from importlib import util
found = util.find_spec
util.find_spec = lambda name, *more: None if name in ("click", "tqdm") else found(name, *more)
from comln_serve import comln
sys.exit(comln.main())
"""
    done = python("-c", script)
    assert done.returncode == 2
    assert done.stderr == 'comln: click, tqdm not installed: pip install "comln-serve[client]"\n'


def test_the_command_starts_fast() -> None:
    """It loads neither the bar, nor what --local needs."""
    done = run("import comln_serve.client.commands; print('tqdm' in sys.modules)")
    assert done.stdout == "False\n"
