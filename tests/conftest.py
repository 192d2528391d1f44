"""Shared fixtures: tiny bundles, engines, clients, images. Nothing here imports torch."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from comln_serve.api.app import create_app
from comln_serve.configuration.settings import Settings
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.engine.engine import Engine, load_models
from comln_serve.storage import Store
from tests.support import messages
from tests.support.databases import database_url, make_url, postgresql
from tests.support.engines import MakeEngine, Serve
from tests.support.paths import REPOSITORY

__all__ = ["database_url", "make_url", "postgresql"]  # fixtures


def pytest_configure() -> None:
    """Give torch one thread, and drop compiled code that is older than the kernels it was made from.

    Beside other test processes the threads of a tiny layer wait for each other longer than they compute. Numba stores
    kernels with the functions and constants of other files in them, and does not notice when these change.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    flow, trainer = REPOSITORY / "comln_serve/flow", REPOSITORY / "training"
    kernels = [*flow.glob("*.py")]
    for folder, sources in (
        (flow, [flow / "tableau.py"]),  # constants of the kernels
        (trainer, kernels),
        (trainer / "gradient_flow", kernels),
    ):
        newest = max(path.stat().st_mtime for path in sources)
        for cached in (folder / "__pycache__").glob("*.nb[ic]"):
            with suppress(FileNotFoundError):  # another test process may have been faster
                if cached.stat().st_mtime < newest:
                    cached.unlink()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the folders of long files first, so that test processes end at about the same time."""
    first = {REPOSITORY / "tests" / name for name in ("server", "ray_app", "trainer", "export", "repository")}
    items.sort(key=lambda item: first.isdisjoint(item.path.parents))


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """Bundles `tiny` (zero start), `tiny-prototype`, `tiny-learned` (5 ways). Do not alter.

    They were made by `python -m tests.support.tiny`; a test compares them with what the exporter makes now.
    """
    return REPOSITORY / "tests" / "bundles"


@pytest.fixture
def models(models_dir: Path, tmp_path: Path) -> Path:
    """A copy of these bundles, to alter."""
    return Path(shutil.copytree(models_dir, tmp_path / "models"))


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SQLite's file with the tables in it. To make them takes longer than all else that a small server does."""
    path = tmp_path_factory.mktemp("database") / "classifiers.db"
    Store(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def settings(models_dir: Path, tmp_path: Path, empty_database: Path) -> Settings:
    """Defaults, on CPU, with a database of its own."""
    shutil.copy(empty_database, tmp_path / "classifiers.db")
    return Settings(
        models_dir=models_dir,
        database_url=f"sqlite:///{tmp_path / 'classifiers.db'}",
        provider="cpu",
        default_model="tiny",
    )


@pytest.fixture
def make_engine(settings: Settings) -> Iterator[MakeEngine]:
    """Engines, each with settings of its own, that are closed at the end of the test."""
    engines: list[Engine] = []
    with ExitStack() as stores:

        def make(settings: Settings = settings, **changes: Any) -> Engine:
            settings = settings.model_copy(update=changes)
            # Closed here, too, if the engine does not start.
            store = stores.enter_context(closing(Store(settings.database_url)))
            engine = Engine(settings, load_models(settings), store)
            engines.append(engine)
            return engine

        yield make
        for engine in engines:
            if engine.ready:  # not closed by its application
                engine.close()


@pytest.fixture
def engine(make_engine: MakeEngine) -> Engine:
    """A warm engine."""
    engine = make_engine()
    engine.warm()
    return engine


@pytest.fixture
def servers(make_engine: MakeEngine, database_url: str) -> tuple[Engine, Engine]:
    """The engines of two servers that share a database of either kind."""
    return make_engine(database_url=database_url), make_engine(database_url=database_url)


@pytest.fixture
def serve(make_engine: MakeEngine) -> Iterator[Serve]:
    """Clients of the whole application, in process, each of one with settings of its own."""
    with ExitStack() as stack:

        def make(*settings: Settings, **changes: Any) -> TestClient:
            engine = make_engine(*settings, **changes)
            client = stack.enter_context(TestClient(create_app(engine), raise_server_exceptions=False))
            engine.warm()  # returns once the application's own warming is done
            return client

        yield make


@pytest.fixture
def client(serve: Serve) -> TestClient:
    return serve()


@pytest.fixture
def batched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines made after this embed images of several requests together, as on a GPU."""
    monkeypatch.setattr(OnnxBackbone, "on_gpu", True)


@pytest.fixture(scope="module")
def service(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server with tight limits and one classifier, `known`."""
    settings = Settings(
        models_dir=models_dir,
        database_url=f"sqlite:///{tmp_path_factory.mktemp('api') / 'classifiers.db'}",
        provider="cpu",
        default_model="tiny",
        max_images=messages.MAX_IMAGES,
        max_image_bytes=messages.MAX_BYTES,
        max_image_pixels=messages.MAX_PIXELS,
        max_body_bytes=messages.MAX_BODY,
        max_label_length=messages.MAX_LABEL,
    )
    engine = Engine(settings, load_models(settings), Store(settings.database_url))
    with TestClient(create_app(engine), raise_server_exceptions=False) as client:
        assert client.post("/adapt", **messages.adapt_form(name="known")).status_code == 201
        yield client
