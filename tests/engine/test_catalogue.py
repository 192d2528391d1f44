"""The catalogue: which classifiers and names a server keeps in memory, and when it sees changes of others."""

from datetime import timedelta
from typing import Any

import pytest

from comln_serve.engine.adapting.changes import RemoveExamples
from comln_serve.engine.classifiers.catalogue import Catalogue, References
from comln_serve.engine.engine import Engine, NewClassifier
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.short_memory import ShortMemory
from comln_serve.storage import TenantStore
from tests.support.engines import MakeEngine, predict
from tests.support.image_files import colour_support, image_bytes
from tests.support.waiting import wait_until


def used(engine: Engine, reference: str) -> str | None:
    """The id of the classifier that a prediction uses, None where there is none."""
    try:
        return predict(engine, [image_bytes()], reference).classifier.id
    except ServiceError as error:
        if error.code is not ErrorCode.CLASSIFIER_NOT_FOUND:
            raise
        return None


def test_classifiers_in_use_are_not_read_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine.adapt(colour_support(), NewClassifier(name="kept")).classifier
    monkeypatch.setattr(TenantStore, "find", lambda *_: pytest.fail("the store was read"))
    for key in (made.id, "kept", made.id):
        assert predict(engine, [image_bytes()], key).classifier is made


def test_classifiers_of_another_server_are_read_once(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = make_engine(), make_engine()
    made = one.adapt(colour_support()).classifier
    first = predict(other, [image_bytes()], made.id).classifier
    monkeypatch.setattr(TenantStore, "find", lambda *_: pytest.fail("the store was read"))
    assert predict(other, [image_bytes()], made.id).classifier is first


def test_references_in_use_are_not_asked_for_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine.adapt(colour_support(), NewClassifier(name="kept")).classifier
    monkeypatch.setattr(References, "seconds", 1e9)
    asked: list[str] = []
    resolve = TenantStore.resolve
    monkeypatch.setattr(TenantStore, "resolve", lambda self, key: (asked.append(key), resolve(self, key))[1])
    for _ in range(3):
        assert used(engine, made.id) == used(engine, "kept") == made.id
    assert asked == [made.id, "kept"]
    for _ in range(2):
        assert used(engine, "nothing") is None
    assert asked == [made.id, "kept", "nothing", "nothing"], "what is not there may come"


def test_a_server_sees_its_own_changes_at_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(References, "seconds", 1e9)
    first = engine.adapt(colour_support(), NewClassifier(name="cats")).classifier
    assert used(engine, "cats") == first.id
    second = engine.adapt(colour_support(2), NewClassifier(name="cats")).classifier
    assert used(engine, "cats") == second.id
    with engine.changing() as store:
        store.roll_back("cats")
    assert used(engine, "cats") == first.id
    with engine.changing() as store:
        store.promote("cats@2")
    assert used(engine, "cats") == second.id
    third = engine.add_examples("cats", colour_support(1)).classifier
    assert used(engine, "cats") == third.id
    engine.classifiers.delete("cats")
    assert used(engine, third.id) is None
    assert used(engine, "cats") != third.id


def test_a_classifier_that_changes_in_place_is_seen_at_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(References, "seconds", 1e9)
    made = engine.adapt(colour_support()).classifier
    assert used(engine, made.id) == made.id
    changed = engine.change(made.id, RemoveExamples([1])).classifier
    found = predict(engine, [image_bytes()], made.id).classifier
    assert (found.id, found.revision) == (made.id, changed.revision) == (made.id, 2)


def test_another_server_sees_a_classifier_that_changes_in_place(
    servers: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(References, "seconds", 0.0)  # they have passed
    one, other = servers
    made = one.adapt(colour_support(2)).classifier
    assert used(other, made.id) == made.id
    changed = one.change(made.id, RemoveExamples([1])).classifier
    found = predict(other, [image_bytes()], made.id).classifier
    assert (found.revision, found.W.tobytes()) == (2, changed.W.tobytes())
    assert changed.W.tobytes() != made.W.tobytes()


def test_a_change_that_fails_after_it_was_written_is_seen_at_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the connection breaks while the database confirms it."""
    monkeypatch.setattr(References, "seconds", 1e9)
    engine.adapt(colour_support(), NewClassifier(name="cats"))
    second = engine.adapt(colour_support(2), NewClassifier(name="cats", promote=False)).classifier
    assert used(engine, "cats") != second.id
    promote = TenantStore.promote

    def lost(store: TenantStore, reference: str, **options: Any) -> None:
        promote(store, reference, **options)
        raise ConnectionError

    monkeypatch.setattr(TenantStore, "promote", lost)
    with pytest.raises(ConnectionError), engine.changing() as store:
        store.promote("cats@2")
    assert used(engine, "cats") == second.id


def test_what_expires_is_gone_while_it_is_remembered(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(References, "seconds", 1e9)
    older = engine.adapt(colour_support(), NewClassifier(name="cats")).classifier
    newer = engine.adapt(colour_support(), NewClassifier(name="cats", expires_in_seconds=3600)).classifier
    assert used(engine, "cats") == used(engine, newer.id) == newer.id
    now = newer.created_at + timedelta(hours=1)
    monkeypatch.setattr(engine.store, "_clock", lambda: now)
    assert used(engine, newer.id) is None
    assert used(engine, "cats") == older.id, "the one promoted before"


def test_another_server_s_promotion_is_seen_before_long(make_engine: MakeEngine) -> None:
    assert References.seconds <= 0.5
    one, other = make_engine(), make_engine()
    one.adapt(colour_support(), NewClassifier(name="shared"))
    assert used(other, "shared") is not None
    newer = one.adapt(colour_support(2), NewClassifier(name="shared")).classifier
    wait_until(lambda: used(other, "shared") == newer.id)


def test_what_was_read_before_a_change_is_not_remembered_after_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prediction that is slow to read, and a promotion meanwhile."""
    monkeypatch.setattr(References, "seconds", 1e9)
    first = engine.adapt(colour_support(), NewClassifier(name="cats")).classifier
    second = engine.adapt(colour_support(2), NewClassifier(name="cats", promote=False)).classifier
    catalogue = Catalogue(engine.store, 2**20)
    resolve = TenantStore.resolve

    def slow(store: TenantStore, reference: str) -> object:
        found = resolve(store, reference)
        monkeypatch.setattr(TenantStore, "resolve", resolve)
        with catalogue.changing("") as mine:
            mine.promote("cats@2")
        return found

    monkeypatch.setattr(TenantStore, "resolve", slow)
    assert catalogue.find("cats", "") is not None
    assert catalogue.find("cats", "").id == second.id
    assert first.id != second.id


def test_forgetting_leaves_the_others() -> None:
    class Memory(ShortMemory[str, int]):
        seconds = 1.0

    asked: list[str] = []

    def find(key: str) -> int:
        asked.append(key)
        return len(key)

    memory = Memory(find, lambda: 0.0)
    assert [memory.read(key) for key in ("a", "bb", "a", "bb")] == [1, 2, 1, 2]
    memory.forget(lambda key: key == "a")
    assert memory.remembered("a") is None
    assert memory.remembered("bb") == 2
    assert asked == ["a", "bb"]
