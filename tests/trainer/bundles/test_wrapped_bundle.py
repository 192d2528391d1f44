"""A bundle that `comln-train wrap` made is served, measured and described as any other; its command makes it again."""

import json
from pathlib import Path

import pytest
import yaml

from comln_serve.bundle import BundleError, load_bundle
from comln_serve.engine.engine import NewClassifier
from tests.support.commands import Command
from tests.support.engines import MakeEngine, predict
from tests.support.graphs import write_model
from tests.support.image_files import colour_support, image_bytes
from tests.support.paths import REPOSITORY
from tests.trainer.bundles.wrapping import backbone_of, wrap
from training.bundles.universal_head import UNIVERSAL_HEAD, UNIVERSAL_HEAD_CONFIG
from training.config import Config, HeadConfig
from training.model import MetaModel


def test_serving_a_wrapped_model(tmp_path: Path, make_engine: MakeEngine) -> None:
    """Classes of colours, classified by a convolution with random weights; T is chosen for the task."""
    bundle = wrap(write_model(tmp_path / "m.onnx"), "--normalisation", "half")
    engine = make_engine(models_dir=bundle.parent, default_model="mine")
    engine.warm()
    manifest = load_bundle(bundle).manifest
    assert manifest.head.horizon_rule == "auto"
    assert load_bundle(bundle).head == UNIVERSAL_HEAD
    classifier = engine.adapt(colour_support(4), NewClassifier(name="colours")).classifier
    assert classifier.horizon > 0
    queries = {"red": (220, 30, 30), "green": (30, 220, 30), "blue": (30, 30, 220)}
    queries_of = [image_bytes(colour, seed=9) for colour in queries.values()]
    predicted = predict(engine, queries_of, "colours")
    labels = predicted.classifier.labels
    assert [labels[row.argmax()] for row in predicted.probabilities] == list(queries)


def write_photos(folder: Path) -> Path:
    for label, colour in {"red": (220, 30, 30), "green": (30, 220, 30)}.items():
        (folder / label).mkdir(parents=True)
        for seed in range(6):
            (folder / label / f"{seed}.png").write_bytes(image_bytes(colour, seed=seed))
    return folder


def test_a_wrapped_bundle_is_measured_as_any_other(tmp_path: Path, comln_train: Command) -> None:
    bundle, photos = wrap(write_model(tmp_path / "m.onnx")), write_photos(tmp_path / "photos")
    few = "--split all --task 2x2 --queries 2 --episodes 5"
    comln_train("evaluate", bundle, "--data", photos, *few.split(), "--record")
    (accuracy,) = load_bundle(bundle).manifest.accuracy
    assert accuracy.mean > 0.9


def test_the_card_says_that_nothing_was_trained(tmp_path: Path) -> None:
    bundle = wrap(write_model(tmp_path / "m.onnx"), "--licence", "MIT")
    training = load_bundle(bundle).manifest.training
    assert (training.updates, training.seconds) == (0, 0)
    assert Config.model_validate(training.config).updates == 0
    assert str(tmp_path) not in json.dumps(training.model_dump(mode="json"))
    card = (bundle / "README.md").read_text(encoding="utf-8")
    assert "Not trained" in card
    assert "MIT" in card


@pytest.mark.parametrize(
    ("flags", "shares"),
    [
        ((), (1.0, 0.65)),
        (("--crop-fraction", "0.875"), (0.875, 1.0, 0.65)),
        (("--support-views", "0.8,0.5"), (1.0, 0.8, 0.5)),
        (("--support-views", "none", "--crop-fraction", "0.875"), (0.875,)),
        (("--resize", "pad"), (1.0,)),
    ],
)
def test_support_images_have_views(
    tmp_path: Path, make_engine: MakeEngine, flags: tuple[str, ...], shares: tuple[float, ...]
) -> None:
    bundle = wrap(write_model(tmp_path / "m.onnx"), *flags)
    assert load_bundle(bundle).manifest.preprocessing.shares == shares
    engine = make_engine(models_dir=bundle.parent, default_model=None)
    made = engine.adapt(colour_support(2)).classifier
    (_, support), width = engine.classifiers.of().support(made.id), made.W.shape[1]
    assert support.embeddings.shape == (len(colour_support(2)), len(shares) * width)


@pytest.mark.parametrize("flags", [(), ("--crop-fraction", "0.875"), ("--support-views", "none")])
def test_the_command_of_the_card_makes_the_same_bundle(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """The command contains everything that was found, assumed or given."""
    model = write_model(tmp_path / "m.onnx")
    first = load_bundle(wrap(model, *flags))
    command = first.manifest.training.command.split()
    assert command[:5] == ["comln-train", "wrap", "m.onnx", "--to", "BUNDLE"]
    assert load_bundle(wrap(model, *command[5:])).embedder_sha256 == first.embedder_sha256


def test_a_bundle_is_replaced_only_on_request(tmp_path: Path, comln_train: Command) -> None:
    model = write_model(tmp_path / "m.onnx")
    bundle = wrap(model)
    before = (bundle / "bundle.json").read_bytes()
    again = ["wrap", model, "--to", bundle, "--interpolation", "bicubic"]
    assert "is a bundle already: --replace" in comln_train.refused(*again)
    assert (bundle / "bundle.json").read_bytes() == before
    comln_train(*again, "--replace")
    assert (bundle / "bundle.json").read_bytes() != before


def test_fit_starts_from_the_head_that_wrap_writes() -> None:
    recipe = yaml.safe_load((REPOSITORY / "training/recipes/frozen-onnx.yaml").read_text())
    assert HeadConfig.model_validate(recipe["head"]) == UNIVERSAL_HEAD_CONFIG


def test_the_recipes_head_equals_the_bundles(tmp_path: Path) -> None:
    bundle = wrap(write_model(tmp_path / "m.onnx"))
    tree = load_bundle(bundle).manifest.training.config
    tree["backbone"]["path"] = str(tmp_path / "m.onnx")
    start, head = MetaModel(Config.model_validate(tree)).head(), UNIVERSAL_HEAD
    assert start.horizon_for(12, 3, 1.0) == pytest.approx(head.horizon_for(12, 3, 1.0))
    for name in ("alpha", "similarity", "shot_offset", "whitening"):
        assert getattr(start, name) == pytest.approx(getattr(head, name)), name


def test_fit_refuses_a_recipe_of_no_updates(tmp_path: Path, comln_train: Command) -> None:
    tree = load_bundle(wrap(write_model(tmp_path / "m.onnx"))).manifest.training.config
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    photos = tmp_path / "photos"
    for split in ("train", "val"):
        write_photos(photos / split)
    fit = ["fit", tmp_path / "recipe.yaml", "--data", photos, "--out", tmp_path / "o"]
    assert "updates is 0" in comln_train.refused(*fit)


def test_only_a_bundle_is_overwritten(tmp_path: Path, comln_train: Command) -> None:
    model = write_model(tmp_path / "m.onnx")
    wrap(model)
    assert backbone_of(wrap(model, "--colour", "bgr"))["colour"] == "bgr"
    taken = tmp_path / "photos"
    taken.mkdir()
    (taken / "mine.jpg").write_bytes(b"a photo")
    assert "--to" in comln_train.refused("wrap", model, "--to", taken)
    assert [path.name for path in taken.iterdir()] == ["mine.jpg"]
    with pytest.raises(BundleError):
        load_bundle(taken)


def test_the_command_says_how_to_serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = wrap(write_model(tmp_path / "m.onnx"))
    printed = capsys.readouterr().out
    assert f"comln-serve --models-dir {bundle.parent} --default-model mine" in printed
    assert "curl" in printed
