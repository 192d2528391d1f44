"""Shared fixtures: tiny bundles, engines, clients, images. Nothing here imports torch."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from comln_serve.api.app import create_app
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.embedding.backbone import Backbone
from comln_serve.engine.embedding.batcher import Batcher
from comln_serve.engine.engine import Engine, load_models
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.settings import Settings
from comln_serve.storage import open_store
from tests.databases import database_url, make_url, postgresql
from tests.image_files import encode

__all__ = ["database_url", "make_url", "postgresql"]  # fixtures

MakeEngine = Callable[[Settings], Engine]

REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_configure() -> None:
    """Drop compiled code that is older than the kernels it was made from.

    Numba stores the trainer's kernels with those of other files inlined, and does not notice when
    these change.
    """
    folders = (REPOSITORY / "comln_serve/flow", REPOSITORY / "training/gradient_flow")
    newest = max(path.stat().st_mtime for folder in folders for path in folder.glob("*.py"))
    for cached in (REPOSITORY / "training/gradient_flow/__pycache__").glob("*.nb[ic]"):
        if cached.stat().st_mtime < newest:
            cached.unlink(missing_ok=True)  # another test process may have been faster


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """Bundles `tiny` (zero start), `tiny-prototype`, `tiny-learned` (5 ways). Do not alter.

    They were made by `python -m tests.tiny`; a test compares them with what the exporter makes now.
    """
    return REPOSITORY / "tests" / "bundles"


@pytest.fixture
def settings(models_dir: Path, tmp_path: Path) -> Settings:
    """Defaults, on CPU, with a database of its own."""
    return Settings(
        models_dir=models_dir,
        database_url=f"sqlite:///{tmp_path / 'classifiers.db'}",
        provider="cpu",
        default_model="tiny",
    )


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    """Engines that are closed at the end of the test."""
    engines: list[Engine] = []

    def make(settings: Settings) -> Engine:
        engine = Engine(settings, load_models(settings), open_store(settings.database_url))
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        if engine.ready:  # not closed by its application
            engine.close()


@pytest.fixture
def engine(settings: Settings, make_engine: MakeEngine) -> Engine:
    """A warm engine."""
    engine = make_engine(settings)
    engine.warm()
    return engine


def fails(code: ErrorCode, action: Callable[[], object]) -> ServiceError:
    """The error of that code that an action must end with."""
    with pytest.raises(ServiceError) as caught:
        action()
    assert caught.value.code is code
    return caught.value


@pytest.fixture
def client(settings: Settings, make_engine: MakeEngine) -> Iterator[TestClient]:
    """A client of the whole application, in process."""
    engine = make_engine(settings)
    with TestClient(create_app(engine), raise_server_exceptions=False) as client:
        engine.warm()  # returns once the application's own warming is done
        yield client


def batcher_of(engine: Engine, model: str = "tiny") -> Batcher:
    """What forms the batches of a model."""
    return engine.models[model].batcher


def before_each_batch(engine: Engine, call: Callable[[int], object], model: str = "tiny") -> None:
    """Call it with the number of images before they are embedded, on the thread that does."""
    batcher = batcher_of(engine, model)
    network = batcher.network

    class Told:
        def embed(self, images: Any, cancellation: Cancellation, *, alone: bool) -> Any:
            call(len(images))
            return network.embed(images, cancellation, alone=alone)

    batcher.network = Told()


@pytest.fixture
def batched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines made after this embed images of several requests together, as on a GPU."""
    monkeypatch.setattr(Backbone, "batches", True)


def image_bytes(
    colour: tuple[int, int, int] = (200, 30, 30), size: tuple[int, int] = (20, 20), fmt: str = "PNG", seed: int = 0
) -> bytes:
    """A noisy image of one dominant colour."""
    noise = np.random.default_rng(seed).integers(-20, 20, (size[1], size[0], 3))
    pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
    return encode(Image.fromarray(pixels), fmt)


def colour_support(shots: int = 3) -> list[tuple[bytes, str]]:
    """Support images of the classes red, green and blue."""
    colours = {"red": (220, 30, 30), "green": (30, 220, 30), "blue": (30, 30, 220)}
    return [(image_bytes(colour, seed=seed), label) for label, colour in colours.items() for seed in range(shots)]


@pytest.fixture(scope="module")
def service(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server with tight limits and one classifier, `known`."""
    from tests import messages  # noqa: PLC0415 (it takes the images from here)

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
    engine = Engine(settings, load_models(settings), open_store(settings.database_url))
    with TestClient(create_app(engine), raise_server_exceptions=False) as client:
        assert client.post("/adapt", **messages.adapt_form(name="known")).status_code == 201
        yield client
