"""Renaming classes keeps the weights; merging them gives the classifier of adapting to the new labels."""

import tracemalloc
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from comln_serve.bundle.head import HorizonRule
from comln_serve.domain.classifier import Classifier
from comln_serve.domain.report import Report
from comln_serve.domain.support import SupportSet
from comln_serve.engine.adapting.changes import RelabelExamples, RemoveExamples, RenameClasses
from comln_serve.engine.engine import Adapted, Caller, Engine, NewClassifier
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.storage import TenantStore
from tests.support.bundles import edit_manifest
from tests.support.engines import MakeEngine, fails, predict
from tests.support.image_files import colour_support, image_bytes
from tests.support.waiting import Gate, at_once

Support = list[tuple[bytes, str]]

TWICE = image_bytes((30, 30, 200), seed=30)
# A class of one image, one of near-duplicates, a photo under two labels, a wrong label: a report that says much.
PHOTOS: Support = [
    *colour_support(4),
    (image_bytes((210, 40, 30), seed=20), "green"),
    (TWICE, "blue"),
    (TWICE, "'blue'"),
    (image_bytes((230, 230, 30), seed=40), "yellow "),
]
QUERIES = [image_bytes((220, 60, 30), seed=70), image_bytes((60, 30, 220), seed=71), image_bytes(seed=72)]
# Exchanges two labels, gives a third class the label of a fourth, and that one a new label.
RENAMING = {"red": "green", "green": "red", "blue": "yellow ", "yellow ": "a \N{CAT FACE}"}
EXPECTED = ("green", "red", "yellow ", "'blue'", "a \N{CAT FACE}")


@pytest.fixture
def engine(make_engine: MakeEngine, database_url: str) -> Engine:
    return make_engine(database_url=database_url)


def renamed_support(support: Support, labels: Mapping[str, str]) -> Support:
    return [(image, labels.get(label, label)) for image, label in support]


def facts(classifier: Classifier) -> dict[str, object]:
    """All that follows from the images, to the last bit, but for the report."""
    others = {"id", "name", "created_at", "version", "promoted", "revision", "metadata", "expires_at", "report", "W"}
    kept = {field: value for field, value in vars(classifier).items() if field not in others}
    return {**kept, "W": classifier.W.tobytes()}


def test_labels_in_every_part_of_a_report(engine: Engine) -> None:
    """The report of the renamed classifier is that of adapting to the same images with the new labels."""
    before = engine.adapt(PHOTOS, NewClassifier(horizon=1e4)).classifier
    assert before.report is not None
    assert before.report.held_out is not None
    text = before.report.model_dump_json()
    assert before.report.held_out.suspects
    assert before.report.contradictory
    assert all(repr(label)[1:-1] in text for label in ("green", "blue", "yellow "))
    expected = engine.adapt(renamed_support(PHOTOS, RENAMING), NewClassifier(horizon=1e4)).classifier
    made = engine.change(before.id, RenameClasses(RENAMING)).classifier
    assert made.report == expected.report
    assert engine.classifiers.of().find(before.id).report == expected.report


def test_a_label_within_another_is_left_alone() -> None:
    labels = ["a", "b'a'", "'a'", "x \"a\" and 'a'", "\\", "a\\'"]
    report = Report(held_out=None, notes=[f"Of {', '.join(map(repr, labels))}."], own_horizon=True, unknown_threshold=0)
    new = {label: label for label in labels} | {"a": "it's", "'a'": "\\g<0>", labels[3]: "y"}
    assert report.renamed(new).notes == [f"Of {', '.join(repr(new[label]) for label in labels)}."]
    for before in ("images'", "image"):
        said = report.model_copy(update={"notes": [f"The model's {before} classes 'a' (the server's)."]})
        assert said.renamed(new).notes == [f"The model's {before} classes \"it's\" (the server's)."]


@pytest.mark.parametrize("relabel", [False, True])
def test_a_request_repeated_while_the_first_is_at_work_is_answered_as_that(
    engine: Engine, relabel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a client does whose connection broke. When its turn comes, there is nothing left to change."""
    engine.adapt(PHOTOS, NewClassifier(name="letters"))

    def change(key: str) -> Adapted:
        caller = Caller(idempotency_key=key)
        if relabel:
            return engine.change("letters", RelabelExamples({1: "new"}), caller)
        return engine.change("letters", RenameClasses({"green": "new"}), caller)

    storing = Gate(monkeypatch, TenantStore, "add")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(change, "key")
        storing.wait()
        again = pool.submit(change, "key")
        storing.open()
        assert (first.result().replayed, again.result().replayed) == (False, True)
        assert first.result().classifier.id == again.result().classifier.id
    fails(ErrorCode.INVALID_REQUEST, lambda: change("another"))


def test_renaming_leaves_no_patterns_in_memory() -> None:
    """Python keeps the last 512 patterns that it has compiled, however large."""
    labels = [f"{number} " + "\0" * 250 for number in range(500)]
    note = f"Of {', '.join(map(repr, labels[:3]))}."
    report = Report(held_out=None, notes=[note], own_horizon=True, unknown_threshold=0)
    tracemalloc.start()
    for turn in range(5):
        renamed = report.renamed({label: f"{turn} {label}" for label in labels})
        assert f"'{turn} 499 " not in renamed.notes[-1]
        assert f"'{turn} 2 " in renamed.notes[-1]
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 2**20


@pytest.mark.parametrize(("model", "horizon"), [("tiny", None), ("tiny", 7.0), ("tiny-prototype", "auto")])
@pytest.mark.parametrize("name", [None, "letters"])
def test_the_same_predictions_to_the_last_bit(
    engine: Engine, model: str, horizon: float | HorizonRule | None, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = NewClassifier(model, name, horizon, metadata={"line": "3"}, expires_in_seconds=1000)
    before = engine.adapt(PHOTOS, new).classifier
    reference = name or before.id
    predicted = predict(engine, QUERIES, reference, unknown=True)
    old_examples = engine.classifiers.of().support(reference)[1]
    with monkeypatch.context() as patch:
        patch.setattr("comln_serve.engine.adapting.adaptation.fit", None)  # nothing is solved
        made = engine.change(reference, RenameClasses(RENAMING)).classifier
    assert made.labels == EXPECTED
    for found in (made, engine.classifiers.of().find(made.id)):
        assert facts(replace(found, labels=before.labels)) == facts(before)
        assert (found.metadata, found.expires_at) == (before.metadata, before.expires_at)
    after = predict(engine, QUERIES, reference, unknown=True)
    assert after.classifier.labels == EXPECTED
    assert after.probabilities.tobytes() == predicted.probabilities.tobytes()
    assert (after.calibrated, after.unknown_threshold) == (predicted.calibrated, predicted.unknown_threshold)
    examples = engine.classifiers.of().support(reference)[1]
    assert examples.labels == tuple(RENAMING.get(label, label) for label in old_examples.labels)
    assert (examples.numbers, examples.hashes) == (old_examples.numbers, old_examples.hashes)
    assert examples.embeddings.tobytes() == old_examples.embeddings.tobytes()
    if name is None:
        assert (made.id, made.revision, made.created_at) == (before.id, 2, before.created_at)
    else:
        assert made.id != before.id
        assert (made.version, made.promoted, made.revision) == (2, True, 1)
    back = engine.change(reference, RenameClasses({new: old for old, new in RENAMING.items()})).classifier
    assert facts(back) == facts(before)
    assert back.report == before.report


@pytest.mark.parametrize(("model", "horizon"), [("tiny", None), ("tiny", 7.0), ("tiny-prototype", "auto")])
@pytest.mark.parametrize("name", [None, "letters"])
@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"yellow ": "red"}, ("red", "green", "blue", "'blue'")),
        ({"red": "blue"}, ("blue", "green", "'blue'", "yellow ")),
        ({"'blue'": "Blue", "blue": "Blue", "green": "red", "red": "green"}, ("green", "red", "Blue", "yellow ")),
    ],
)
def test_classes_that_are_merged(
    engine: Engine,
    model: str,
    horizon: float | HorizonRule | None,
    name: str | None,
    labels: dict[str, str],
    expected: tuple[str, ...],
) -> None:
    """The result is that of adapting to the same images with the new labels."""
    new = NewClassifier(model, horizon=horizon)
    before = engine.adapt(PHOTOS, replace(new, name=name)).classifier
    made = engine.change(name or before.id, RenameClasses(labels)).classifier
    assert made.labels == expected
    fresh = engine.adapt(renamed_support(PHOTOS, labels), new).classifier
    for found in (made, engine.classifiers.of().find(made.id)):
        assert facts(found) == facts(fresh)
        assert found.report == fresh.report
    assert (made.version, made.revision) == ((None, 2) if name is None else (2, 1))


def test_examples_keep_their_numbers(engine: Engine) -> None:
    made = engine.adapt(colour_support(2)).classifier
    engine.change(made.id, RemoveExamples([2]))
    for labels in ({"red": "Red"}, {"Red": "blue"}):
        engine.change(made.id, RenameClasses(labels))
        assert engine.classifiers.of().support(made.id)[1].numbers == (1, 3, 4, 5, 6)
    added = engine.add_examples(made.id, [(image_bytes(seed=9), "blue")]).classifier
    assert (added.labels, added.examples) == (("blue", "green"), (4, 2))
    assert engine.classifiers.of().support(made.id)[1].numbers == (1, 3, 4, 5, 6, 7)


def test_versions_stay_and_can_be_rolled_back_to(engine: Engine) -> None:
    made = engine.adapt(colour_support(2), NewClassifier(name="letters")).classifier
    held = engine.change("letters", RenameClasses({"red": "Red"}), promote=False).classifier
    assert (held.version, held.promoted) == (2, False)
    assert engine.classifiers.find("letters").labels == made.labels
    third = engine.change("letters@2", RenameClasses({"blue": "Blue"})).classifier
    assert (third.version, third.promoted, third.labels) == (3, True, ("Red", "green", "Blue"))
    merged = engine.change(third.id, RenameClasses({"Red": "Blue"})).classifier
    assert (merged.version, merged.labels) == (4, ("Blue", "green"))
    with engine.changing() as store:
        assert store.roll_back("letters").version == 3
    assert predict(engine, QUERIES, "letters").classifier.labels == ("Red", "green", "Blue")
    assert engine.classifiers.of().support("letters@1")[1].classes == ("red", "green", "blue")


def test_thumbnails_stay_with_their_examples(make_engine: MakeEngine, database_url: str) -> None:
    engine = make_engine(keep_thumbnails=True, database_url=database_url)

    def shown(reference: str) -> dict[str, int | None]:
        return {one.label: one.thumbnail for one in engine.classifiers.of().describe(reference).classes}

    made = engine.adapt(colour_support(2), NewClassifier(name="letters")).classifier
    jpegs = engine.classifiers.of().support(made.id)[1].thumbnails
    assert sorted(jpegs) == [1, 3, 5]
    renamed = engine.change("letters", RenameClasses({"red": "blue", "blue": "red"})).classifier
    assert {one.label: one.thumbnail for one in renamed.classes} == {"blue": 1, "green": 3, "red": 5}
    assert shown("letters") == {"blue": 1, "green": 3, "red": 5}
    assert engine.classifiers.of().support("letters")[1].thumbnails == jpegs
    merged = engine.change("letters", RenameClasses({"red": "green"})).classifier
    assert {one.label: one.thumbnail for one in merged.classes} == {"blue": 1, "green": 3}
    assert shown("letters") == {"blue": 1, "green": 3}
    assert engine.classifiers.of().support("letters")[1].thumbnails == {number: jpegs[number] for number in (1, 3)}
    assert shown(made.id) == {"red": 1, "green": 3, "blue": 5}


def test_a_class_without_a_thumbnail_gets_that_of_another() -> None:
    examples = SupportSet.of(np.zeros((3, 1), np.float32), [None] * 3, ["a", "b", "c"], {1: b"b", 2: b"c"})
    merged = examples.renamed({"b": "a", "c": "a"})
    assert (merged.labels, merged.numbers) == (("a", "a", "a"), (1, 2, 3))
    assert (merged.thumbnails, merged.thumbnails_by_class()) == ({2: b"b"}, (2,))


def test_renamings_that_cannot_be_done_change_nothing(engine: Engine) -> None:
    made = engine.adapt([(image_bytes(seed=i), f"class {i}") for i in range(12)]).classifier
    error = fails(
        ErrorCode.INVALID_REQUEST, lambda: engine.change(made.id, RenameClasses({"class 1": "x", "Class 2": "y"}))
    )
    assert error.detail == {"received": ["Class 2"], "available": list(made.labels)}
    assert "has no class 'Class 2'. Its classes are 'class 0', 'class 1'" in error.message
    assert "'class 9' and 2 more." in error.message
    for labels in ({}, {"class 1": "class 1"}):
        error = fails(ErrorCode.INVALID_REQUEST, lambda n=labels: engine.change(made.id, RenameClasses(n)))
        assert "No label would change" in error.message
    one = dict.fromkeys(made.labels, "one")
    error = fails(ErrorCode.CANNOT_ADAPT, lambda: engine.change(made.id, RenameClasses(one)))
    assert error.detail == {"received_classes": 1, "least_classes": 2}
    for reference, tenant in (("absent", ""), ("absent@1", ""), ("clf_0", ""), (made.id, "other")):
        caller = Caller(tenant)
        fails(
            ErrorCode.CLASSIFIER_NOT_FOUND,
            lambda r=reference, c=caller: engine.change(r, RenameClasses({"class 1": "x"}), c),
        )
    stored, examples = engine.classifiers.of().support(made.id)
    assert (stored.revision, stored.labels) == (1, made.labels) == (1, examples.classes)


def test_a_model_that_has_changed_since(make_engine: MakeEngine, models: Path) -> None:
    """New labels do not depend on it; adapting again does."""
    engine = make_engine(models_dir=models)
    made = engine.adapt(colour_support(2)).classifier
    predicted = predict(engine, QUERIES, made.id)
    edit_manifest(models / "tiny", lambda tree: tree["head"].update(regularisation=0.01))
    assert engine.reload().replaced == ["tiny"]
    renamed = engine.change(made.id, RenameClasses({"red": "Red"})).classifier
    assert (renamed.head_sha256, renamed.W.tobytes()) == (made.head_sha256, made.W.tobytes())
    assert predict(engine, QUERIES, made.id).probabilities.tobytes() == predicted.probabilities.tobytes()
    merged = engine.change(made.id, RenameClasses({"Red": "blue"})).classifier
    assert merged.head_sha256 == engine.models["tiny"].bundle.head_sha256 != made.head_sha256
    edit_manifest(models / "tiny", lambda tree: tree["preprocessing"].update(resize="pad"))
    assert engine.reload().replaced == ["tiny"]
    with_three = engine.adapt(colour_support(1)).classifier
    fails(ErrorCode.MODEL_CHANGED, lambda: engine.change(made.id, RenameClasses({"blue": "green"})))
    again = engine.change(made.id, RenameClasses({"blue": "Blue"})).classifier
    assert (again.revision, again.embedder_sha256) == (4, made.embedder_sha256)
    assert again.embedder_sha256 != with_three.embedder_sha256


def test_a_tied_model_keeps_its_number_of_classes(engine: Engine) -> None:
    support = [(image_bytes(seed=i), f"class {i}") for i in range(5)]
    made = engine.adapt(support, NewClassifier(model="tiny-learned")).classifier
    error = fails(ErrorCode.CANNOT_ADAPT, lambda: engine.change(made.id, RenameClasses({"class 1": "class 2"})))
    assert error.detail == {"received_classes": 4, "needed_classes": 5}
    renamed = engine.change(made.id, RenameClasses({"class 1": "class 2", "class 2": "class 1"})).classifier
    assert renamed.labels == ("class 0", "class 2", "class 1", "class 3", "class 4")


@pytest.mark.parametrize("name", [None, "letters"])
def test_one_of_two_renamings_of_a_class_is_done(servers: tuple[Engine, Engine], name: str | None) -> None:
    made = servers[0].adapt(colour_support(1), NewClassifier(name=name)).classifier
    reference = name or made.id

    def rename(engine: Engine) -> ErrorCode | None:
        try:
            engine.change(reference, RenameClasses({"red": "Red"}))
        except ServiceError as error:
            return error.code
        return None

    assert set(at_once(rename, servers)) == {None, ErrorCode.INVALID_REQUEST}
    found = servers[1].classifiers.of().find(reference)
    assert (found.revision, found.version) == ((2, None) if name is None else (1, 2))


def test_the_note_of_labels_that_are_alike_is_about_the_new_ones(engine: Engine) -> None:
    support = [(data, {"red": "lemon", "green": "Lemon"}.get(label, label)) for data, label in colour_support(2)]
    made = engine.adapt(support).classifier

    def notes() -> str:
        report = engine.classifiers.of().describe(made.id).report
        assert report is not None
        return " ".join(report.notes)

    assert "'lemon' and 'Lemon'" in notes()
    engine.change(made.id, RenameClasses({"lemon": "citron"}))
    assert "only in case" not in notes()
    engine.change(made.id, RenameClasses({"citron": "BLUE"}))
    assert "'BLUE' and 'blue'" in notes()
