"""Adding and removing examples: the result is that of adapting to them from the start."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from comln_serve.bundle.head import HorizonRule
from comln_serve.domain.classifier import Classifier
from comln_serve.engine.adapting import adaptation
from comln_serve.engine.adapting.changes import AdaptAgain, RelabelExamples, RemoveExamples, RenameClasses
from comln_serve.engine.classifiers.catalogue import References
from comln_serve.engine.engine import Caller, Engine, NewClassifier
from comln_serve.errors import ErrorCode
from comln_serve.storage import TenantStore
from tests.support.bundles import edit_manifest
from tests.support.engines import MakeEngine, before_each_batch, fails, predict
from tests.support.image_files import colour_support, image_bytes
from tests.support.waiting import at_once

Support = list[tuple[bytes, str]]

FIRST: Support = colour_support(2)
YELLOW: Support = [(image_bytes((220, 220, 30), seed=seed), "yellow") for seed in range(3)]
MORE: Support = [(image_bytes((200, 60, 40), seed=9), "red"), *YELLOW]


@pytest.fixture(scope="module")
def models_dir(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the tiny bundles one gets a horizon that follows the support set."""
    models = Path(shutil.copytree(models_dir, tmp_path_factory.mktemp("models") / "models"))
    exponents = {"examples": 0.5, "classes": 0.25, "norm": -0.5}
    edit_manifest(
        models / "tiny-prototype",
        lambda content: content.update(format_version=3) or content["head"].update(exponents=exponents, whitening=2.0),
    )
    return models


@pytest.fixture
def engine(make_engine: MakeEngine, database_url: str) -> Engine:
    return make_engine(database_url=database_url)


def numbers(engine: Engine, reference: str) -> list[int]:
    return list(engine.classifiers.of().support(reference)[1].numbers)


def check_same(engine: Engine, changed: Classifier, support: Support, horizon: float | None = None) -> None:
    """To the last bit, all that follows from the images."""
    fresh = engine.adapt(support, NewClassifier(model=changed.model, horizon=horizon)).classifier
    for stored in (changed, engine.classifiers.find(changed.id)):
        assert stored.W.tobytes() == fresh.W.tobytes()
        for field in (
            "labels",
            "examples",
            "horizon",
            "support_loss",
            "support_accuracy",
            "horizon_rule",
            "embedder_sha256",
            "head_sha256",
        ):
            assert getattr(stored, field) == getattr(fresh, field)


@pytest.mark.parametrize("model", ["tiny", "tiny-prototype"])
@pytest.mark.parametrize("horizon", [None, 7.0, "auto", "learned"])
@pytest.mark.parametrize("name", [None, "letters"])
def test_the_result_is_that_of_adapting_from_the_start(
    engine: Engine, model: str, horizon: float | HorizonRule | None, name: str | None
) -> None:
    made = engine.adapt(FIRST, NewClassifier(model=model, horizon=horizon, name=name)).classifier
    reference = name or made.id
    added = engine.add_examples(reference, MORE).classifier
    check_same(engine, added, FIRST + MORE, horizon=horizon)
    # The first class loses its first example, and comes second then.
    removed = engine.change(reference, RemoveExamples([1])).classifier
    check_same(engine, removed, (FIRST + MORE)[1:], horizon=horizon)
    again = engine.add_examples(reference, FIRST[:1]).classifier
    check_same(engine, again, (FIRST + MORE)[1:] + FIRST[:1], horizon=horizon)
    assert numbers(engine, reference) == [*range(2, 11), 11]
    if model == "tiny-prototype" and horizon is None:
        assert len({made.horizon, added.horizon, removed.horizon}) == 3, "the model's law applies"


def test_a_name_gets_versions_and_the_old_ones_stay(engine: Engine) -> None:
    new = NewClassifier(name="letters", metadata={"line": "3"}, expires_in_seconds=1000)
    made = engine.adapt(FIRST, new).classifier
    added = engine.add_examples("letters", YELLOW).classifier
    assert (added.version, added.promoted, added.revision) == (2, True, 1)
    assert added.id != made.id
    assert (added.metadata, added.expires_at) == (made.metadata, made.expires_at)
    held = engine.add_examples("letters@1", YELLOW[:1], promote=False).classifier
    assert (held.version, held.promoted) == (3, False)
    assert engine.classifiers.find("letters").id == added.id
    assert engine.classifiers.find("letters@1").W.tobytes() == made.W.tobytes()
    assert numbers(engine, "letters@1") == [1, 2, 3, 4, 5, 6]
    assert numbers(engine, "letters@2") == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert numbers(engine, "letters@3") == [1, 2, 3, 4, 5, 6, 7]
    by_id = engine.change(made.id, RemoveExamples([3])).classifier
    assert by_id.version == 4
    assert numbers(engine, "letters") == [1, 2, 4, 5, 6]
    with engine.changing() as store:
        assert store.roll_back("letters").version == 2


def test_without_a_name_it_changes_in_place_and_other_servers_see_it(
    servers: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(References, "seconds", 0.0)  # they have passed
    one, other = servers
    made = one.adapt(FIRST).classifier
    assert predict(other, [image_bytes()], made.id).probabilities.shape == (1, 3)
    added = one.add_examples(made.id, YELLOW).classifier
    assert (added.id, added.revision) == (made.id, 2)
    assert (added.created_at, added.version) == (made.created_at, None)
    for engine in (one, other):
        predicted = predict(engine, [image_bytes()], made.id)
        assert predicted.classifier.W.tobytes() == added.W.tobytes()
        assert predicted.probabilities.shape == (1, 4)
    other.change(made.id, RemoveExamples([7]))
    assert one.classifiers.find(made.id).revision == 3
    assert one.store.count() == 1


def test_the_last_example_of_a_class_takes_it_along(engine: Engine) -> None:
    made = engine.adapt([FIRST[0], FIRST[2], YELLOW[0]]).classifier
    assert engine.change(made.id, RemoveExamples([2])).classifier.labels == ("red", "yellow")
    error = fails(ErrorCode.CANNOT_ADAPT, lambda: engine.change(made.id, RemoveExamples([1])))
    assert "at least two classes" in error.message
    assert numbers(engine, made.id) == [1, 3]
    assert engine.classifiers.find(made.id).revision == 2


def test_a_number_is_never_given_again(engine: Engine) -> None:
    made = engine.adapt(FIRST).classifier
    engine.change(made.id, RemoveExamples([6]))
    for number in (6, 7, 99):
        error = fails(ErrorCode.EXAMPLE_NOT_FOUND, lambda n=number: engine.change(made.id, RemoveExamples([n])))
        assert error.detail == {"received": [number]}
    engine.add_examples(made.id, YELLOW[:1])
    assert numbers(engine, made.id) == [1, 2, 3, 4, 5, 7]


@pytest.mark.parametrize("name", [None, "letters"])
def test_several_are_removed_at_once(engine: Engine, name: str | None) -> None:
    """One change; a class whose examples are all among them goes along."""
    reference = name or engine.adapt(FIRST + MORE).classifier.id
    if name is not None:
        engine.adapt(FIRST + MORE, NewClassifier(name=name))
    removed = engine.change(reference, RemoveExamples([9, 4, 10, 8, 4, 1])).classifier
    check_same(engine, removed, [item for i, item in enumerate(FIRST + MORE, 1) if i not in (1, 4, 8, 9, 10)])
    assert numbers(engine, reference) == [2, 3, 5, 6, 7]
    assert "yellow" not in removed.labels
    assert (removed.version, removed.revision) == ((None, 2) if name is None else (2, 1))


def test_one_number_that_does_not_exist_keeps_all(engine: Engine) -> None:
    made = engine.adapt(FIRST).classifier
    error = fails(ErrorCode.EXAMPLE_NOT_FOUND, lambda: engine.change(made.id, RemoveExamples([9, 1, 7, 2])))
    assert error.detail == {"received": [7, 9]}
    assert "no examples 7, 9; nothing was changed" in error.message
    error = fails(ErrorCode.EXAMPLE_NOT_FOUND, lambda: engine.change(made.id, RemoveExamples(range(1, 400))))
    assert error.detail == {"received": [*range(7, 400)]}
    assert " 15, 16 and 383 more;" in error.message
    for some in (range(1, 7), range(1, 5)):  # of all classes, or of all but one
        error = fails(ErrorCode.CANNOT_ADAPT, lambda some=some: engine.change(made.id, RemoveExamples(some)))
        assert "at least two classes" in error.message
    assert numbers(engine, made.id) == [*range(1, 7)]
    assert engine.classifiers.find(made.id).revision == 1


@pytest.mark.parametrize("name", [None, "letters"])
def test_labels_of_examples_are_corrected(engine: Engine, name: str | None) -> None:
    """As if the images had been sent with these labels; a class that has no example left is gone."""
    made = engine.adapt(FIRST + MORE, NewClassifier(name=name)).classifier
    reference = name or made.id
    old = [label for _, label in FIRST + MORE]
    new = {1: old[-1], 3: "new", **{number: "red" for number, label in enumerate(old, 1) if label == "yellow"}}
    changed = engine.change(reference, RelabelExamples(new)).classifier
    support = [(image, new.get(number, label)) for number, (image, label) in enumerate(FIRST + MORE, 1)]
    check_same(engine, changed, support)
    assert "new" in changed.labels
    assert ("yellow" in changed.labels) == (new[1] == "yellow")
    assert (changed.version, changed.revision) == ((None, 2) if name is None else (2, 1))
    assert numbers(engine, reference) == [*range(1, 11)]
    back = engine.change(reference, RelabelExamples({number: old[number - 1] for number in new})).classifier
    check_same(engine, back, FIRST + MORE)


def test_labels_that_cannot_be_corrected(engine: Engine) -> None:
    made = engine.adapt(FIRST).classifier
    error = fails(
        ErrorCode.EXAMPLE_NOT_FOUND, lambda: engine.change(made.id, RelabelExamples({1: "new", 9: "new", 7: "x"}))
    )
    assert error.detail == {"received": [7, 9]}
    error = fails(ErrorCode.INVALID_REQUEST, lambda: engine.change(made.id, RelabelExamples({1: made.labels[0]})))
    assert "No label would change" in error.message
    everything = dict.fromkeys(range(1, 7), "one")
    fails(ErrorCode.CANNOT_ADAPT, lambda: engine.change(made.id, RelabelExamples(everything)))
    assert engine.classifiers.find(made.id).revision == 1


@pytest.mark.parametrize("name", [None, "letters"])
def test_adapting_again_takes_another_horizon(engine: Engine, name: str | None) -> None:
    """The same images, so the result is that of adapting to them at that horizon; changes keep it."""
    new = NewClassifier("tiny-prototype", name, metadata={"line": "3"}, expires_in_seconds=1000)
    made = engine.adapt(FIRST, new).classifier
    reference = name or made.id
    given = engine.change(reference, AdaptAgain(7.0)).classifier
    check_same(engine, given, FIRST, horizon=7.0)
    assert (given.horizon, given.horizon_rule) == (7.0, "given")
    assert (given.metadata, given.expires_at) == (made.metadata, made.expires_at)
    assert (given.version, given.revision) == ((None, 2) if name is None else (2, 1))
    assert engine.change(reference, AdaptAgain()).classifier.horizon == 7.0, "as the classifier has it"
    added = engine.add_examples(reference, MORE).classifier
    check_same(engine, added, FIRST + MORE, horizon=7.0)
    back = engine.change(reference, AdaptAgain("learned")).classifier
    check_same(engine, back, FIRST + MORE)
    assert numbers(engine, reference) == [*range(1, 11)]
    if name is not None:
        held = engine.change(reference, AdaptAgain(2.0), promote=False).classifier
        assert not held.promoted
        assert engine.classifiers.find(reference).id == back.id
        assert engine.classifiers.find(made.id).W.tobytes() == made.W.tobytes()


def test_a_tied_model_keeps_its_number_of_classes(engine: Engine) -> None:
    support = [(image_bytes(seed=i), f"class {i}") for i in range(5)]
    made = engine.adapt(support, NewClassifier(model="tiny-learned")).classifier
    fails(ErrorCode.CANNOT_ADAPT, lambda: engine.add_examples(made.id, YELLOW))
    fails(ErrorCode.CANNOT_ADAPT, lambda: engine.change(made.id, RemoveExamples([1])))
    assert engine.add_examples(made.id, support[:1]).classifier.examples == (2, 1, 1, 1, 1)


def test_changes_that_cannot_be_made_change_nothing(engine: Engine) -> None:
    made = engine.adapt(FIRST).classifier
    for reference in ("absent", "absent@1", "clf_0"):
        fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda r=reference: engine.add_examples(r, YELLOW))
        fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda r=reference: engine.change(r, RemoveExamples([1])))
        fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda r=reference: engine.change(r, AdaptAgain(3.0)))
        fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda r=reference: engine.classifiers.of().support(r))
    fails(ErrorCode.INVALID_IMAGE, lambda: engine.add_examples(made.id, [(b"no image", "red")]))
    fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: engine.add_examples(made.id, YELLOW, Caller(tenant="other")))
    assert engine.classifiers.find(made.id).revision == 1
    assert engine.images.pending == 0


def test_a_model_that_has_changed_since(make_engine: MakeEngine, models: Path) -> None:
    before = make_engine()
    before.warm()
    made = before.adapt(FIRST).classifier
    before.close()
    edit_manifest(models / "tiny", lambda tree: tree["preprocessing"].update(resize="pad"))
    after = make_engine(models_dir=models)
    fails(ErrorCode.MODEL_CHANGED, lambda: after.add_examples(made.id, YELLOW))
    fails(ErrorCode.MODEL_CHANGED, lambda: after.change(made.id, RemoveExamples([1])))
    fails(ErrorCode.MODEL_CHANGED, lambda: after.change(made.id, AdaptAgain()))
    assert numbers(after, made.id) == [1, 2, 3, 4, 5, 6], "they can still be looked at"


def test_limits_on_examples_and_on_versions(make_engine: MakeEngine) -> None:
    engine = make_engine(max_examples=8, max_classifiers=2)
    error = fails(ErrorCode.TOO_MANY_IMAGES, lambda: engine.adapt(colour_support(3)))
    assert error.detail == {"received_images": 9, "allowed_images": 8}
    engine.adapt(FIRST, NewClassifier(name="letters"))
    fails(ErrorCode.TOO_MANY_IMAGES, lambda: engine.add_examples("letters", YELLOW))
    engine.add_examples("letters", YELLOW[:2])
    for change in (RemoveExamples([1]), AdaptAgain(), RenameClasses({"red": "Red"})):
        fails(ErrorCode.TOO_MANY_CLASSIFIERS, lambda change=change: engine.change("letters", change))
    assert engine.store.count() == 2


def test_limit_on_classes(make_engine: MakeEngine) -> None:
    engine = make_engine(max_classes=3)
    error = fails(ErrorCode.CANNOT_ADAPT, lambda: engine.adapt([*FIRST, *YELLOW]))
    assert error.detail == {"received_classes": 4, "allowed_classes": 3}
    assert "--max-classes" in error.message
    made = engine.adapt(FIRST).classifier
    engine.add_examples(made.id, MORE[:1])  # of a class it has
    for beyond in (
        lambda: engine.add_examples(made.id, YELLOW),
        lambda: engine.change(made.id, RelabelExamples({1: "yellow"})),
    ):
        error = fails(ErrorCode.CANNOT_ADAPT, beyond)
        assert error.detail == {"received_classes": 4, "allowed_classes": 3}


def test_no_image_is_decoded_and_nothing_solved_where_the_limit_is_reached(
    make_engine: MakeEngine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(max_classifiers=2, database_url=database_url)
    unnamed = engine.adapt(FIRST).classifier
    made = engine.adapt(FIRST, NewClassifier(name="letters"), Caller(idempotency_key="first")).classifier
    broken: Support = [(b"no image", "red"), (b"none either", "green")]
    fails(ErrorCode.TOO_MANY_CLASSIFIERS, lambda: engine.adapt(broken))
    error = fails(ErrorCode.TOO_MANY_CLASSIFIERS, lambda: engine.add_examples("letters", broken))
    assert error.detail == {"stored": 2, "limit": 2}
    with monkeypatch.context() as without:
        without.delattr(adaptation, "fit")
        fails(ErrorCode.TOO_MANY_CLASSIFIERS, lambda: engine.change("letters", RemoveExamples([1])))
    # What takes no room is done as ever: a change in place, and an answer given before.
    fails(ErrorCode.INVALID_IMAGE, lambda: engine.add_examples(unnamed.id, broken))
    assert engine.add_examples(unnamed.id, YELLOW).classifier.revision == 2
    again = engine.adapt(FIRST, NewClassifier(name="letters"), Caller(idempotency_key="first"))
    assert (again.replayed, again.classifier.id) == (True, made.id)
    assert engine.images.pending == 0


def test_the_limit_counts_classifiers_that_others_made_meanwhile(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(max_classifiers=1)
    engine.adapt(FIRST, NewClassifier(name="letters"))
    monkeypatch.setattr(TenantStore, "check_room", lambda *_: None)
    fails(ErrorCode.TOO_MANY_CLASSIFIERS, lambda: engine.adapt(FIRST))
    fails(ErrorCode.TOO_MANY_CLASSIFIERS, lambda: engine.add_examples("letters", YELLOW))
    assert engine.store.count() == 1


@pytest.mark.parametrize("name", [None, "letters"])
def test_changes_at_the_same_time_lose_nothing(servers: tuple[Engine, Engine], name: str | None) -> None:
    """Eight threads on two servers; each change is there in the end, and counted once."""
    made = servers[0].adapt(FIRST, NewClassifier(name=name)).classifier
    reference = name or made.id

    def work(thread: int) -> None:
        engine = servers[thread % 2]
        if thread < 2:
            engine.change(reference, RemoveExamples([1 + thread]))
        else:
            engine.add_examples(reference, [(image_bytes(seed=thread), f"class {thread}")])

    at_once(work, range(8))
    found, support = servers[0].classifiers.of().support(reference)
    assert set(support.labels) == {"green", "blue", *(f"class {n}" for n in range(2, 8))}
    assert support.numbers == (3, 4, 5, 6, *range(7, 13))
    assert (found.revision, found.version) == ((9, None) if name is None else (1, 9))
    images = {f"class {n}": image_bytes(seed=n) for n in range(2, 8)}
    changed = servers[1].classifiers.find(reference)
    check_same(servers[0], changed, [*FIRST[2:], *((images[label], label) for label in support.labels[4:])])


@pytest.mark.parametrize("name", [None, "letters"])
def test_a_change_that_another_server_overtakes_begins_anew_and_embeds_nothing_again(
    servers: tuple[Engine, Engine], name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = servers
    made = one.adapt(FIRST, NewClassifier(name=name)).classifier
    reference, embedded, fit = name or made.id, list[int](), adaptation.fit
    before_each_batch(one, embedded.append)

    def overtaken(*arguments: Any) -> Classifier:
        monkeypatch.setattr(adaptation, "fit", fit)
        other.change(reference, RemoveExamples([1]))
        return fit(*arguments)

    monkeypatch.setattr(adaptation, "fit", overtaken)
    added = one.add_examples(reference, [(b"no image", "red"), *YELLOW], partial=True)
    assert sum(embedded) == len(YELLOW)
    assert [image.index for image in added.rejected] == [0]
    assert numbers(one, reference) == [*range(2, 10)]
    assert (added.classifier.revision, added.classifier.version) == ((3, None) if name is None else (1, 3))
    check_same(one, added.classifier, [*FIRST[1:], *YELLOW])
