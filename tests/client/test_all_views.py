"""Images looked at in all views of a model, from Python and by `comln`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from comln_serve.client import Client
from tests.client.pictures import class_folder
from tests.client.wires import Run, Wire, client_on
from tests.support.bundles import with_views

MODEL = "tiny-prototype"


@pytest.fixture
def line(wired: Callable[..., Wire], models_dir: Path, tmp_path: Path) -> Wire:
    """To a server of a model of two views."""
    return wired(models_dir=with_views(models_dir / MODEL, tmp_path / "views", (0.8, 0.4)), default_model=MODEL)


def test_the_calls_of_a_client(line: Wire, tmp_path: Path) -> None:
    with client_on(line) as client:
        folder = class_folder(tmp_path / "photos")
        client.adapt_folder(folder, name="shop")
        images = sorted(folder.rglob("*.png"))
        one, both = (client.predict(images, "shop", all_views=flag) for flag in (False, True))
        assert [item.probability for item in both] != [item.probability for item in one]
        assert client.predict_folder(folder, "shop", all_views=True).predictions == both.predictions
        labels = [path.parent.name for path in images]
        chances = {item.image: item.probability for item in both}
        for found in (
            client.evaluate(images, labels, "shop", all_views=True),
            client.evaluate_folder(folder, "shop", all_views=True),
        ):
            assert {item.image: item.probability for item in found.images} == chances


def test_the_commands(comln: Client, run: Run, tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "photos")
    comln.adapt_folder(folder, name="shop")
    expected = {item.image: item.probability for item in comln.predict_folder(folder, "shop", all_views=True)}
    predicted = json.loads(run("predict", folder, "--classifier", "shop", "--all-views", "--json").stdout)
    assert {item["image"]: item["probability"] for item in predicted["predictions"]} == expected
    comln.adapt_again("shop", horizon=0.1)
    evaluated = json.loads(
        run("evaluate", folder, "--classifier", "shop@1", "--all-views", "--against", "shop@2", "--json").stdout
    )
    assert {item["image"]: item["probability"] for item in evaluated["images"]} == expected
