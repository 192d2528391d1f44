"""The engine without HTTP: adapting, predicting, and the errors of both."""

import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from threading import Thread, current_thread
from typing import Any

import numpy as np
import onnx
import pytest

from comln_serve.configuration.settings import Settings
from comln_serve.domain.classifier import Classifier
from comln_serve.engine.adapting import fitting
from comln_serve.engine.bundles import load_bundles, models_folder
from comln_serve.engine.engine import Engine, NewClassifier
from comln_serve.errors import ErrorCode, StartupError
from tests.support.bundles import edit_manifest, poison_backbone, replace_file
from tests.support.engines import MakeEngine, fails, predict
from tests.support.image_files import colour_support, image_bytes
from tests.support.paths import REPOSITORY

COLOURS = [(220, 30, 30), (30, 220, 30), (30, 30, 220), (220, 220, 30), (30, 220, 220)]


def test_a_second_predict_equals_the_first(engine: Engine) -> None:
    adapted = engine.adapt(colour_support()).classifier
    queries = [image_bytes(colour, seed=77) for colour in COLOURS]
    first = predict(engine, queries, adapted.id)
    second = predict(engine, queries, adapted.id)
    np.testing.assert_array_equal(first.probabilities, second.probabilities)
    np.testing.assert_allclose(first.probabilities.sum(axis=1), 1.0, rtol=1e-12)
    assert first.classifier.labels == ("red", "green", "blue")


@pytest.mark.parametrize("light", [True, False])
def test_heavy_classification_leaves_the_event_loop_free(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, light: bool
) -> None:
    made = engine.adapt(colour_support()).classifier
    expected = predict(engine, [image_bytes()], made.id).probabilities
    threads: list[Thread] = []

    def noted(classifier: Classifier, *arguments: Any) -> Any:
        threads.append(current_thread())
        return probabilities(classifier, *arguments)

    probabilities = Classifier.probabilities
    monkeypatch.setattr(Classifier, "probabilities", noted)
    weights = made.W.size
    monkeypatch.setattr("comln_serve.engine.engine._LIGHT", weights if light else weights - 1)
    np.testing.assert_array_equal(predict(engine, [image_bytes()], made.id).probabilities, expected)
    assert (threads == [current_thread()]) == light


def test_horizon_is_the_model_s_own_or_the_caller_s(engine: Engine) -> None:
    own = engine.adapt(colour_support()).classifier
    assert own.horizon == engine.models["tiny"].bundle.head.horizon
    losses = [own.support_loss]
    for factor in (3.0, 10.0):
        longer = engine.adapt(colour_support(), NewClassifier(horizon=factor * own.horizon)).classifier
        assert longer.horizon == factor * own.horizon
        losses.append(longer.support_loss)
    assert losses == sorted(losses, reverse=True), "the flow descends"
    assert losses[0] > losses[-1]
    none = engine.adapt(colour_support(), NewClassifier(horizon=1e-12)).classifier
    assert none.support_loss == pytest.approx(np.log(3), abs=1e-6), "a zero start knows nothing"


def test_a_flow_that_cannot_be_solved_is_said_so(models: Path, make_engine: MakeEngine) -> None:
    """A bundle that allows a single step."""
    edit_manifest(models / "tiny", lambda content: content["solver"].update(max_steps=1))
    engine = make_engine(models_dir=models)
    error = fails(ErrorCode.CANNOT_ADAPT, lambda: engine.adapt(colour_support(), NewClassifier(horizon=1e6)))
    assert "shorter horizon" in error.message
    assert error.detail == {"horizon": 1e6}
    assert engine.store.count() == 0


def test_a_flow_that_takes_too_long_names_the_setting(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "raised_after", lambda _seconds: nullcontext(np.ones(1, dtype=np.bool_)))
    error = fails(ErrorCode.CANNOT_ADAPT, lambda: engine.adapt(colour_support(), NewClassifier(horizon=1e6)))
    assert "max_solve_seconds, which is 60" in error.message


def test_equal_images_under_different_labels(engine: Engine) -> None:
    """No classifier can tell them apart: an answer, not a failure, and an even one."""
    same = image_bytes()
    adapted = engine.adapt([(same, "a"), (same, "b")]).classifier
    predicted = predict(engine, [same], adapted.id).probabilities
    np.testing.assert_allclose(predicted, [[0.5, 0.5]], atol=1e-4)


@pytest.mark.parametrize("change", ["altered", "removed", "other preprocessing"])
def test_a_classifier_of_another_backbone_is_not_used(models: Path, make_engine: MakeEngine, change: str) -> None:
    engine = make_engine()
    engine.warm()
    adapted = engine.adapt(colour_support(), NewClassifier(model="tiny")).classifier
    engine.close()

    if change == "removed":
        shutil.rmtree(models / "tiny")
    elif change == "other preprocessing":
        edit_manifest(models / "tiny", lambda tree: tree["preprocessing"].update(resize="pad"))
    else:
        graph = onnx.load_from_string((models / "tiny" / "backbone.onnx").read_bytes())
        graph.doc_string = "retrained"
        replace_file(models / "tiny", "backbone", graph.SerializeToString())
    changed = make_engine(models_dir=models, default_model="tiny-prototype")
    error = fails(ErrorCode.MODEL_CHANGED, lambda: predict(changed, [image_bytes()], adapted.id))
    assert error.detail["model"] == "tiny"
    assert changed.classifiers.find(adapted.id).id == adapted.id, "it can still be looked at"


def test_some_format_has_to_be_readable(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    assert make_engine(image_formats="HEIC,PNG").formats == ("PNG",)
    with pytest.raises(StartupError, match="image_formats is HEIC, and no decoder of these is installed"):
        make_engine(image_formats="HEIC")


def test_bundles_are_found_without_being_told_where(
    settings: Settings, models_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the working folder, else with the package: here the repository's."""
    monkeypatch.chdir(tmp_path)
    unset = settings.model_copy(update={"models_dir": None, "default_model": None})
    assert models_folder(settings) == models_dir
    assert models_folder(unset) == REPOSITORY / "models"
    (tmp_path / "models" / "of-something-else").mkdir(parents=True)
    assert models_folder(unset) == REPOSITORY / "models"
    shutil.copytree(models_dir / "tiny", tmp_path / "models" / "tiny")
    assert models_folder(unset) == Path("models")
    assert [bundle.name for bundle in load_bundles(unset)] == ["tiny"]
    monkeypatch.setattr("comln_serve.engine.bundles._FOLDERS", (Path("a"), tmp_path / "b"))
    with pytest.raises(StartupError, match=f"there is no model bundle in {tmp_path}/a, {tmp_path}/b; name a folder"):
        load_bundles(unset)


def test_default_model(settings: Settings, make_engine: MakeEngine) -> None:
    assert make_engine().adapt(colour_support()).classifier.model == "tiny"
    unnamed = settings.model_copy(update={"default_model": None})
    assert make_engine(unnamed).models.default == "tiny", "the first by name"
    with pytest.raises(StartupError, match="'absent' is not in"):
        make_engine(default_model="absent")


def test_ready_between_warm_and_close(make_engine: MakeEngine) -> None:
    engine = make_engine()
    states = [engine.ready]
    engine.warm()
    states.append(engine.ready)
    engine.close()
    assert [*states, engine.ready] == [False, True, False]


def test_a_backbone_that_gives_nan_never_gets_ready(models: Path, make_engine: MakeEngine) -> None:
    poison_backbone(models / "tiny")
    engine = make_engine(models_dir=models)
    engine.warm()
    assert not engine.ready
    assert "NaN" in str(engine.failure)
    fails(ErrorCode.NOT_READY, lambda: engine.adapt(colour_support()))
