"""docs/architecture.md names modules that exist and that requests really run."""

import re
import sys

import pytest

from tests.support.documents import document
from tests.support.paths import REPOSITORY
from tests.support.programs import python

TEXT = document("architecture.md")
SECTIONS = dict(re.findall(r"^## (.+?)$(.+?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
MODULE = re.compile(r"\b(?:comln_serve|training)/[a-z0-9_/]+\.py\b")

# What embeds in another process.
ELSEWHERE = {"comln_serve/ray_app/remote_model.py", "comln_serve/engine/embedding_process/shared_model.py"}

# Adapts and predicts twice, and prints the modules that code was run of the second time.
TRACED = """
import sys, threading

entered = {"adapt": set(), "predict": set()}
operation = None

def profile(frame, event, _argument):
    if operation and event == "call" and "/comln_serve/" in frame.f_code.co_filename:
        entered[operation].add("comln_serve/" + frame.f_code.co_filename.split("/comln_serve/")[-1])

threading.setprofile(profile)
sys.setprofile(profile)

from fastapi.testclient import TestClient
from comln_serve.api.app import create_app
from comln_serve.engine.engine import Engine, load_models
from comln_serve.configuration.settings import Settings
from comln_serve.storage import Store
from tests.support.messages import adapt_form, predict_form
from tests.support.image_files import image_bytes

settings = Settings(
    models_dir=sys.argv[1], database_url="sqlite:///" + sys.argv[2], provider="cpu"
)
engine = Engine(settings, load_models(settings), Store(settings.database_url))
with TestClient(create_app(engine)) as client:
    engine.warm()
    for turn in range(2):
        operation = "adapt" if turn else None
        client.post("/adapt", **adapt_form(name="known")).raise_for_status()
        operation = "predict" if turn else None
        client.post("/predict", **predict_form(image_bytes())).raise_for_status()
    operation = None
for name, modules in entered.items():
    print(name, *sorted(modules))
"""


def walk(section: str) -> list[str]:
    """The modules of a section, in their order."""
    return MODULE.findall(SECTIONS[section])


def test_all_modules_that_are_named_exist() -> None:
    named = MODULE.findall(TEXT)
    assert len(named) > 30
    assert [name for name in named if not (REPOSITORY / name).is_file()] == []


def test_walks_are_short() -> None:
    """The server's part of a prediction, but for what stands in the backbone's place elsewhere."""
    assert len([module for module in walk("POST /predict") if module not in ELSEWHERE]) <= 15
    assert len(TEXT.splitlines()) < 100


@pytest.fixture(scope="module")
def entered(models_dir: object, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Modules that requests run code of, by operation."""
    database = tmp_path_factory.mktemp("walk") / "classifiers.db"
    done = python("-c", TRACED, models_dir, database)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return {line[0]: set(line[1:]) for line in lines if line[0] in ("adapt", "predict")}


@pytest.mark.parametrize(
    ("operation", "elsewhere"),
    [
        ("predict", {"comln_serve/server/protocol.py", *ELSEWHERE}),  # in a test there is no socket
        # Compiled functions: numba tells a profiler of them in Python 3.11 only.
        ("adapt", set() if sys.version_info < (3, 12) else {"comln_serve/flow/kernels.py"}),
    ],
)
def test_a_request_passes_through_the_modules_of_its_walk(
    entered: dict[str, set[str]], operation: str, elsewhere: set[str]
) -> None:
    named = set(walk(f"POST /{operation}"))
    assert named - entered[operation] == elsewhere
