"""Reports, calibrated probabilities and `unknown` through engine and API."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from comln_serve.api.app import create_app
from comln_serve.bundle import Head
from comln_serve.bundle.calibration import TaskLaw, shots_of
from comln_serve.domain.support import SupportSet
from comln_serve.engine.adapting.changes import AdaptAgain, RenameClasses
from comln_serve.engine.engine import Engine, NewClassifier
from comln_serve.engine.models import LocalModel
from comln_serve.export.head_file import metadata
from tests.support.bundles import calibration, edit_manifest
from tests.support.engines import MakeEngine, Serve, predict
from tests.support.image_files import colour_support, image_bytes, prepare_image
from tests.support.messages import adapt_form, adapt_json, predict_form, predict_json
from tests.support.paths import REPOSITORY

QUERIES = [image_bytes((220, 30, 30), seed=70), image_bytes((30, 30, 220), seed=71)]

CALIBRATION = calibration(TaskLaw(constant=0.7, shots=-0.5, ways=0.1), 0.9999)


@pytest.fixture
def calibrated(models: Path, make_engine: MakeEngine) -> Engine:
    """`tiny` with a calibration."""
    content = CALIBRATION.model_dump(mode="json")
    edit_manifest(models / "tiny", lambda tree: tree.update(calibration=content, format_version=2))
    engine = make_engine(models_dir=models)
    engine.warm()
    return engine


def test_adapt_reports_and_the_report_stays(client: TestClient) -> None:
    support = colour_support(8)
    made = client.post("/adapt", **adapt_form(support, name="colours")).json()
    report = made["report"]
    # Noise on the few pixels that this model sees is now and then nearly the same.
    assert all("nearly the same photo as others" in note for note in report["notes"])
    assert report["own_horizon"] is True
    assert report["held_out"]["predicted"] == [0] * 8 + [1] * 8 + [2] * 8
    held_out = report["held_out"]
    assert (held_out["folds"], held_out["judged"]) == (8, 24)
    assert held_out["confusion"] == [[8, 0, 0], [0, 8, 0], [0, 0, 8]]
    assert held_out["accuracy"] == 1.0
    assert held_out["suspects"] == []
    assert -1 <= report["unknown_threshold"] <= 1
    for key in ("colours", made["id"]):
        assert client.get(f"/classifiers/{key}").json()["report"] == report
    (listed,) = client.get("/classifiers").json()["classifiers"]
    assert "report" not in listed, "a page of a thousand would be heavy with them"


def test_the_horizon_is_chosen_where_that_is_asked_for(client: TestClient) -> None:
    support = colour_support(4)
    learned = client.post("/adapt", **adapt_form(support)).json()
    assert (learned["horizon_rule"], learned["report"]["horizon_choice"]) == ("learned", None)
    for message in (adapt_form, adapt_json):
        made = client.post("/adapt", **message(support, name="colours", horizon="auto")).json()
        choice = made["report"]["horizon_choice"]
        assert made["horizon_rule"] == "auto"
        assert choice["learned"] == learned["horizon"]
        horizons = [candidate["horizon"] for candidate in choice["candidates"]]
        assert made["horizon"] in horizons
        assert horizons == sorted(horizons)
        assert choice["level"][0] <= made["horizon"] <= choice["level"][1]
        # The calibration is of the learned T, whoever arrives at it.
        assert made["report"]["own_horizon"] is (made["horizon"] == choice["learned"])
    stored = client.get("/classifiers/colours").json()
    assert (stored["horizon"], stored["horizon_rule"]) == (made["horizon"], "auto")
    assert stored["report"]["horizon_choice"] == choice
    alone = colour_support(1)
    made = client.post("/adapt", **adapt_form(alone, horizon="auto")).json()
    assert made["horizon_rule"] == "auto"
    assert made["report"]["horizon_choice"] is None
    assert made["horizon"] == client.post("/adapt", **adapt_form(alone)).json()["horizon"]


def test_a_wrong_label_is_named_by_the_number_that_removes_it(client: TestClient) -> None:
    support = colour_support(8)
    support[3] = (support[3][0], "blue")
    made = client.post("/adapt", **adapt_json(support, horizon=1e4)).json()
    held_out = made["report"]["held_out"]
    # `blue` is the second label now: it first appears on an image of red.
    assert [entry["label"] for entry in made["classes"]] == ["red", "blue", "green"]
    assert held_out["confusion"] == [[7, 0, 0], [1, 8, 0], [0, 0, 8]]
    (suspect,) = held_out["suspects"]
    assert (suspect["number"], suspect["label"], suspect["likelier"]) == (4, "blue", "red")
    # The number stays, whatever is removed before it.
    examples = f"/classifiers/{made['id']}/examples"
    fewer = client.delete(f"{examples}/1").raise_for_status().json()
    (suspect,) = fewer["report"]["held_out"]["suspects"]
    assert suspect["number"] == 4
    right = client.delete(f"{examples}/{suspect['number']}").raise_for_status().json()
    assert right["report"]["held_out"]["suspects"] == []
    assert {entry["label"]: entry["examples"] for entry in right["classes"]} == {"red": 6, "blue": 8, "green": 8}


def test_classes_of_one_image_are_not_held_out(client: TestClient) -> None:
    made = client.post("/adapt", **adapt_form(colour_support(1))).json()
    assert made["report"]["held_out"] is None
    assert made["report"]["unknown_threshold"] is None
    assert len(made["report"]["notes"]) == 1


def test_an_uncalibrated_model_says_so(client: TestClient) -> None:
    made = client.post("/adapt", **adapt_form(colour_support(1))).json()
    answer = client.post("/predict", **predict_form(*QUERIES, classifier=made["id"])).json()
    assert answer["calibrated"] is False
    assert answer["unknown_threshold"] is None
    assert set(answer["predictions"][0]) == {"label", "probability", "top"}
    asked = predict_form(*QUERIES, classifier=made["id"], unknown="true")
    answer = client.post("/predict", **asked).json()
    assert answer["unknown_threshold"] is None
    for prediction in answer["predictions"]:
        assert prediction["unknown"] is None, "nothing to derive a threshold from"
        assert -1 <= prediction["similarity"] <= 1
    models = client.get("/models").json()["models"]
    assert [model["calibration"] for model in models] == [None] * 3


@pytest.mark.slow
@pytest.mark.parametrize("shots", [1, 3])
@pytest.mark.parametrize("body", [predict_form, predict_json])
def test_characters_outside_the_task_are_unknown(serve: Serve, body: Callable[..., dict[str, Any]], shots: int) -> None:
    """Seven characters are the classes; drawings of three others are not among them.

    With three drawings each the threshold comes from the drawings, with one from the model.
    """
    drawings = sorted((REPOSITORY / "examples" / "omniglot").glob("*/"))
    known, strange = drawings[:7], drawings[7:10]
    support = [
        (path.read_bytes(), folder.name) for folder in known for path in sorted(folder.glob("support/*.png"))[:shots]
    ]
    client = serve(models_dir=REPOSITORY / "models", default_model="omniglot-conv4")
    made = client.post("/adapt", **adapt_form(support)).json()
    answers = []
    for folders in (known, strange):
        images = [path.read_bytes() for f in folders for path in sorted(f.glob("query/*.png"))]
        asked = body(*images, classifier=made["id"], unknown=True)
        answers.append(client.post("/predict", **asked).json())
    own = made["report"]["unknown_threshold"]
    assert (own is None) == (shots == 1)
    threshold = answers[0]["unknown_threshold"]
    assert threshold is not None
    assert own in {None, threshold}
    refused = []
    for answer in answers:
        assert answer["calibrated"] is True
        for prediction in answer["predictions"]:
            assert prediction["unknown"] == (prediction["similarity"] < threshold)
        refused.append(np.mean([prediction["unknown"] for prediction in answer["predictions"]]))
    assert refused[0] < 0.25
    assert refused[1] > 0.7


def test_unknown_must_be_a_truth_value(client: TestClient) -> None:
    answer = client.post("/predict", **predict_form(*QUERIES, classifier="x", unknown="perhaps"))
    assert answer.status_code == 422
    assert "unknown" in answer.json()["error"]["message"]


def test_probabilities_at_the_model_s_temperature(calibrated: Engine) -> None:
    made = calibrated.adapt(colour_support(2)).classifier
    cold = predict(calibrated, QUERIES, made.id)
    assert cold.calibrated
    tau = np.exp(0.7 - 0.5 * np.log(2) + 0.1 * np.log(3))
    model = calibrated.models["tiny"]
    manifest = model.bundle.manifest.model_copy(update={"calibration": None})
    model.bundle = replace(model.bundle, manifest=manifest)
    plain = predict(calibrated, QUERIES, made.id)
    assert not plain.calibrated
    warm = plain.probabilities ** (1 / tau)
    np.testing.assert_allclose(cold.probabilities, warm / warm.sum(axis=1, keepdims=True))
    np.testing.assert_array_equal(cold.probabilities.argmax(axis=1), plain.probabilities.argmax(axis=1))


@pytest.mark.parametrize("horizon", [None, 50.0])
def test_where_no_calibration_applies_the_report_has_the_temperature(
    engine: Engine, calibrated: Engine, horizon: float | None
) -> None:
    """The model has none, or it was not measured for a horizon of the caller's."""
    chosen = engine if horizon is None else calibrated
    made = chosen.adapt(colour_support(5), NewClassifier(horizon=horizon)).classifier
    assert made.report is not None
    assert made.report.temperature is not None
    predicted = predict(chosen, QUERIES, made.id)
    assert predicted.calibrated
    expected = made.probabilities(embedded(chosen), made.report.temperature)
    np.testing.assert_array_equal(predicted.probabilities, expected)
    assert metadata(made, chosen.models["tiny"].bundle)["temperature"] == repr(made.report.temperature)


def test_a_calibration_goes_before_the_report_s_temperature(calibrated: Engine) -> None:
    made = calibrated.adapt(colour_support(5)).classifier
    assert made.report is not None
    assert made.report.temperature is not None
    assert calibrated.models["tiny"].bundle.temperature_of(made) == CALIBRATION.temperature_of([5, 5, 5])


def test_a_horizon_of_the_caller_s_is_not_calibrated(calibrated: Engine) -> None:
    made = calibrated.adapt(colour_support(2), NewClassifier(horizon=50.0)).classifier
    assert made.report is not None
    assert made.report.own_horizon is False
    predicted = predict(calibrated, QUERIES, made.id)
    assert not predicted.calibrated
    np.testing.assert_array_equal(predicted.probabilities, made.probabilities(embedded(calibrated)))


def embedded(engine: Engine) -> Any:
    """The embeddings of the queries."""
    model = engine.models["tiny"]
    assert isinstance(model, LocalModel)
    policy = model.bundle.manifest.preprocessing
    return model.backbone.embed(np.stack([prepare_image(data, policy) for data in QUERIES]))


def test_few_images_take_the_model_s_threshold(calibrated: Engine) -> None:
    few = calibrated.adapt(colour_support(1)).classifier
    assert predict(calibrated, QUERIES, few.id, unknown=True).unknown_threshold == 0.9999
    many = calibrated.adapt(colour_support(8)).classifier
    assert many.report is not None
    found = predict(calibrated, QUERIES, many.id, unknown=True).unknown_threshold
    assert found == many.report.unknown_threshold != 0.9999


def test_a_threshold_may_be_relative_to_the_nearest_other_class(calibrated: Engine, models: Path) -> None:
    relative = calibration(CALIBRATION.log_temperature, 0.125).model_copy(update={"unknown_relative": True})
    content = relative.model_dump(mode="json")
    edit_manifest(models / "tiny", lambda tree: tree.update(calibration=content, format_version=8))
    assert calibrated.reload().replaced == ["tiny"]
    few = calibrated.adapt(colour_support(1)).classifier
    assert few.report is not None
    assert few.report.nearest_other_class is not None
    predicted = predict(calibrated, QUERIES, few.id, unknown=True)
    assert predicted.unknown_threshold == few.report.nearest_other_class + 0.125
    bundle = calibrated.models["tiny"].bundle
    assert metadata(few, bundle)["unknown_threshold"] == repr(predicted.unknown_threshold)
    stored_before = replace(few, report=few.report.model_copy(update={"nearest_other_class": None}))
    assert bundle.unknown_threshold_of(stored_before) is None
    assert bundle.unknown_threshold_of(replace(few, report=None)) is None


def test_a_horizon_of_the_caller_s_has_no_threshold_of_the_model_s(calibrated: Engine) -> None:
    few = calibrated.adapt(colour_support(1), NewClassifier(horizon=3.0)).classifier
    predicted = predict(calibrated, QUERIES, few.id, unknown=True)
    assert predicted.unknown_threshold is None
    assert not predicted.calibrated


def test_the_calibration_is_of_the_head_that_the_bundle_has_now(calibrated: Engine, models: Path) -> None:
    """It was measured with that head: a classifier of an earlier one has none, until it is adapted again."""
    few = calibrated.adapt(colour_support(1)).classifier
    before = predict(calibrated, QUERIES, few.id, unknown=True)
    assert (before.calibrated, before.unknown_threshold) == (True, 0.9999)
    edit_manifest(models / "tiny", lambda tree: tree["head"].update(regularisation=0.01))
    assert calibrated.reload().replaced == ["tiny"]
    kept = predict(calibrated, QUERIES, few.id, unknown=True)
    assert (kept.calibrated, kept.unknown_threshold) == (False, None)
    assert kept.classifier.W.tobytes() == few.W.tobytes()
    plain = few.probabilities(embedded(calibrated))
    np.testing.assert_array_equal(kept.probabilities, plain)
    assert not np.array_equal(before.probabilities, plain)
    assert metadata(kept.classifier, calibrated.models["tiny"].bundle)["temperature"] == "1.0"
    anew = calibrated.change(few.id, AdaptAgain()).classifier
    assert anew.W.tobytes() == calibrated.adapt(colour_support(1)).classifier.W.tobytes() != few.W.tobytes()
    now = predict(calibrated, QUERIES, few.id, unknown=True)
    assert (now.calibrated, now.unknown_threshold) == (True, 0.9999)


def test_renaming_classes_leaves_the_calibration_as_it_is(calibrated: Engine, models: Path) -> None:
    """Even if the bundle has another head now: the weights are of the earlier one still."""
    few = calibrated.adapt(colour_support(1)).classifier
    calibrated.change(few.id, RenameClasses({"red": "Red"}))
    renamed = predict(calibrated, QUERIES, few.id, unknown=True)
    assert (renamed.calibrated, renamed.unknown_threshold) == (True, 0.9999)
    edit_manifest(models / "tiny", lambda tree: tree["head"].update(regularisation=0.01))
    calibrated.reload()
    calibrated.change(few.id, RenameClasses({"green": "Green"}))
    renamed = predict(calibrated, QUERIES, few.id, unknown=True)
    assert (renamed.calibrated, renamed.unknown_threshold) == (False, None)
    calibrated.change(few.id, RenameClasses({"Green": "Red"}))  # adapts again, by the head of now
    assert predict(calibrated, QUERIES, few.id, unknown=True).calibrated


def test_a_classifier_without_a_report_is_served(calibrated: Engine) -> None:
    """As one made by an earlier release would be."""
    made = calibrated.adapt(colour_support(8)).classifier
    old = type(made)(**{**vars(made), "id": "clf_old", "report": None, "head_sha256": None})
    calibrated.store.for_tenant("").add(
        old, SupportSet.of(np.zeros((1, old.W.shape[1]), np.float32), [None], old.labels[:1]), limit=10
    )
    predicted = predict(calibrated, QUERIES, "clf_old", unknown=True)
    assert predicted.unknown_threshold == 0.9999
    with TestClient(create_app(calibrated)) as client:
        assert client.get("/classifiers/clf_old").json()["report"] is None
        (model, *_) = client.get("/models").json()["models"]
        assert model["calibration"] == {"split": "val", "episodes": 5, "tasks": []}


def test_too_little_time_for_a_report_is_no_failure(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline passes between the solve and the report."""
    engine = make_engine()
    solve = Head.adapt

    def slow(head: Head, *arguments: Any, cancel: Any = None, **options: Any) -> Any:
        solution = solve(head, *arguments, cancel=cancel, **options)
        if cancel is not None:
            cancel[0] = True
        return solution

    monkeypatch.setattr(Head, "adapt", slow)
    made = engine.adapt(colour_support(3)).classifier
    assert made.support_accuracy == 1.0
    assert made.report is not None
    assert made.report.held_out is None
    (note,) = made.report.notes
    assert "0 of 9 images were judged" in note
    assert predict(engine, QUERIES, made.id).probabilities.shape == (2, 3)


def test_a_law_stays_constant_beyond_what_was_measured() -> None:
    """Beyond what was measured the laws stay what they are at the ends."""
    assert shots_of([1, 1]) == 1
    assert shots_of([1, 3]) == pytest.approx(1.5)
    at_the_end = CALIBRATION.temperature_of([5] * 10)
    assert CALIBRATION.temperature_of([500] * 10) == at_the_end
    assert CALIBRATION.temperature_of([5] * 40) == at_the_end
    assert at_the_end == pytest.approx(np.exp(0.7 - 0.5 * np.log(5) + 0.1 * np.log(10)))
    for constant in (1e6, -1e6):
        steep = CALIBRATION.model_copy(update={"log_temperature": TaskLaw(constant=constant, shots=0, ways=0)})
        assert 0 < steep.temperature_of([1, 1]) < np.inf
