"""A browser, a server with the page, and photos."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Visitor
from tests.support.browsers import BROWSERS, Browser
from tests.support.image_files import colour_support
from tests.support.live import LiveServer, live_server
from tests.support.pages import Colours
from tests.support.tiny import tiny_config, write_bundle


@pytest.fixture(scope="module", params=BROWSERS)
def program(request: pytest.FixtureRequest) -> type[Browser]:
    """Each browser, before anything is made for it."""
    program = BROWSERS[request.param]
    if not program.installed():
        pytest.skip(f"{program.name} is not installed, or no driver for it: make browser")
    return program


@pytest.fixture(scope="module")
def folder(program: type[Browser], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what the browser and the server write."""
    return tmp_path_factory.mktemp(program.name)


@pytest.fixture(scope="module")
def browser(program: type[Browser], folder: Path) -> Iterator[Browser]:
    browser = program(folder)
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def bundles(models_dir: Path, folder: Path) -> Path:
    """The usual bundles, and `tiny-far`, which adapts so far that it is sure of things."""
    models = folder / "models"
    shutil.copytree(models_dir, models)
    write_bundle(models / "tiny-far", tiny_config(head={"initial_horizon": 1e4}))
    return models


@pytest.fixture(scope="module")
def server(bundles: Path, folder: Path) -> Iterator[LiveServer]:
    with live_server(bundles, folder, "--default-model", "tiny", "--max-label-length", "300") as server:
        yield server


@pytest.fixture
def visitor(browser: Browser, server: LiveServer) -> Visitor:
    visitor = Visitor(browser, server.url)
    visitor.resize(1280)
    visitor.prefer()
    visitor.visit()
    return visitor


@pytest.fixture
def colours(tmp_path: Path) -> Colours:
    """Three images of each of three colours."""
    paths: Colours = {}
    for number, (content, label) in enumerate(colour_support()):
        path = tmp_path / f"{label}-{number}.png"
        path.write_bytes(content)
        paths.setdefault(label, []).append(path)
    return paths


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A HEIC file that cannot be read."""
    path = tmp_path / "holiday.heic"
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"x" * 50)
    return path
