"""Shared fixtures: tiny bundles made by the real exporter, engines, clients, images."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

from comln_serve.api.app import create_app
from comln_serve.engine.backbone import Backbone
from comln_serve.engine.batcher import Batcher
from comln_serve.engine.engine import Engine, load_models
from comln_serve.engine.lane import Images
from comln_serve.engine.model import LocalModel
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.settings import Settings
from comln_serve.storage import open_store
from tests.databases import database_url, make_url, postgresql
from tests.image_files import encode
from training.bundle_writer import About
from training.checkpoint import Checkpoint
from training.config import Config
from training.export import export_bundle
from training.model import MetaModel

__all__ = ["database_url", "make_url", "postgresql"]  # fixtures

MakeEngine = Callable[[Settings], Engine]

REPOSITORY = Path(__file__).resolve().parents[1]
ABOUT = About(description="A tiny test model.", licence="Apache-2.0", data="none")


def pytest_configure() -> None:
    """Drop compiled code that is older than the kernels it was made from.

    Numba stores the trainer's kernels with those of other files inlined, and does not notice when
    these change.
    """
    folders = (REPOSITORY / "comln_serve/flow", REPOSITORY / "training/gradient_flow")
    newest = max(path.stat().st_mtime for folder in folders for path in folder.glob("*.py"))
    for cached in (REPOSITORY / "training/gradient_flow/__pycache__").glob("*.nb[ic]"):
        if cached.stat().st_mtime < newest:
            cached.unlink()


def tiny_config(start: str = "zero", ways: int = 5, image_size: int = 16) -> Config:
    """A Conv-4 of 8 channels on 16 px colour images: embeddings of size 8."""
    return Config.model_validate(
        {
            "data": {"kind": "image_folder", "preprocessing": {"image_size": image_size}},
            "backbone": {"channels": 8},
            "head": {"start": start, "initial_horizon": 20.0, "initial_alpha": 2.0},
            "episodes": {"ways": ways, "shots": [1, 2], "queries": 2},
            "validation": {"tasks": [[ways, 1]], "episodes": 5, "every": 2, "queries": 2},
            "updates": 4,
        }
    )


def tiny_model(config: Config) -> MetaModel:
    """Random weights, running statistics of a few random images; no training."""
    torch.manual_seed(0)
    model = MetaModel(config)
    size = config.data.preprocessing.image_size
    images = np.random.default_rng(0).integers(0, 256, (32, size, size, 3), dtype=np.uint8)
    model.train()
    with torch.no_grad():
        for _ in range(20):
            model.backbone(torch.from_numpy(images))
        if model.W0 is not None:
            model.W0.normal_(std=0.1)
    return model.eval()


def write_bundle(folder: Path, config: Config) -> MetaModel:
    """Export a tiny model to `folder` with the real exporter, and return the torch model."""
    model = tiny_model(config)
    checkpoint = Checkpoint(config, 0, model.state_dict(), {}, {}, 0.0, 0.0, [], "a", "b")
    export_bundle(checkpoint, folder, ABOUT)
    return model


@pytest.fixture(scope="session")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles `tiny` (zero start), `tiny-prototype`, `tiny-learned` (5 ways). Do not alter."""
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "tiny", tiny_config("zero"))
    write_bundle(root / "tiny-prototype", tiny_config("prototype"))
    write_bundle(root / "tiny-learned", tiny_config("learned"))
    return root


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
    """What forms the batches of a model that runs in this process."""
    served = engine.models[model]
    assert isinstance(served, LocalModel)
    return served.batcher


def before_each_batch(engine: Engine, call: Callable[[int], object], model: str = "tiny") -> None:
    """Call it with the number of images before they are embedded, on the thread that does."""
    for lane in batcher_of(engine, model).lanes:

        def run(images: Images, *, alone: bool, run: Any = lane.run) -> Any:
            call(len(images))
            return run(images, alone=alone)

        lane.run = run  # type: ignore[method-assign]


@pytest.fixture
def batched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines made after this embed images of several requests together, as on a GPU."""
    monkeypatch.setattr(Backbone, "batches", True)


def image_bytes(
    colour: tuple[int, int, int] = (200, 30, 30),
    size: tuple[int, int] = (20, 20),
    fmt: str = "PNG",
    seed: int = 0,
) -> bytes:
    """A noisy image of one dominant colour."""
    noise = np.random.default_rng(seed).integers(-20, 20, (size[1], size[0], 3))
    pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
    return encode(Image.fromarray(pixels), fmt)


def colour_support(shots: int = 3) -> list[tuple[bytes, str]]:
    """Support images of the classes red, green and blue."""
    colours = {"red": (220, 30, 30), "green": (30, 220, 30), "blue": (30, 30, 220)}
    return [
        (image_bytes(colour, seed=seed), label)
        for label, colour in colours.items()
        for seed in range(shots)
    ]


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
