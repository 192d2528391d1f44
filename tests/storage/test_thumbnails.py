"""Thumbnails live and die with their classifier, on SQLite and on PostgreSQL."""

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from comln_serve.domain.classifier import Classifier
from comln_serve.domain.support import SupportSet
from comln_serve.errors import ErrorCode
from comln_serve.storage import Store, TenantStore
from comln_serve.storage import store as store_module
from tests.support.classifiers import add, classifier, support
from tests.support.databases import execute, insert_classifier, migrate_to, statements_of
from tests.support.engines import fails

# Of the first, third and last of six classes.
JPEGS = {1: b"\xff\xd8one", 3: b"\xff\xd8three", 6: bytes(range(256))}
SHOWN = (1, None, 3, None, None, 6)


@pytest.fixture
def mine(store: Store) -> TenantStore:
    return store.for_tenant("", show_thumbnails=True)


def with_thumbnails(jpegs: dict[int, bytes] = JPEGS) -> SupportSet:
    return replace(support(), thumbnails=jpegs)


def put(store: TenantStore, id_: str, name: str | None = None, **more: object) -> Classifier:
    """Add a classifier with thumbnails."""
    examples = with_thumbnails()
    made = classifier(id_, name, thumbnails=examples.thumbnails_by_class(), **more)
    return store.add(made, examples, limit=100)


def count(url: str) -> int:
    ((found,),) = execute(url, "SELECT count(*) FROM thumbnails")
    return int(found)


def test_kept_with_the_classifier_and_named_wherever_it_is_read(mine: TenantStore) -> None:
    assert put(mine, "clf_a", "cats").thumbnails == SHOWN
    add(mine, "clf_b")
    for reference in ("clf_a", "cats", "cats@1"):
        assert {number: mine.thumbnail(reference, number) for number in JPEGS} == JPEGS
        assert mine.thumbnail(reference, 2) is None
        assert mine.describe(reference).thumbnails == SHOWN
        assert mine.find(reference).thumbnails == SHOWN
        record, examples = mine.support(reference)
        assert (record.thumbnails, examples.thumbnails) == (SHOWN, JPEGS)
    assert [item.thumbnails for item in mine.page(limit=10)[0]] == [(), SHOWN]
    assert [item.thumbnail for item in mine.describe("cats").classes] == list(SHOWN)
    assert mine.thumbnail("clf_b", 1) is None
    fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: mine.thumbnail("dogs", 1))


def test_not_shown_unless_asked_for(mine: TenantStore, store: Store) -> None:
    put(mine, "clf_a")
    plain = store.for_tenant("")
    assert plain.describe("clf_a").thumbnails == plain.find("clf_a").thumbnails == ()
    assert plain.support("clf_a")[1].thumbnails == {}
    assert plain.page(limit=1)[0][0].thumbnails == ()


def test_tenants_have_their_own(mine: TenantStore, store: Store) -> None:
    put(mine, "clf_a", "cats")
    other = store.for_tenant("other", show_thumbnails=True)
    add(other, "clf_b", "cats")
    assert other.thumbnail("cats", 1) is None
    fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: other.thumbnail("clf_a", 1))


def test_lists_read_no_jpegs(mine: TenantStore, store: Store) -> None:
    put(mine, "clf_a")
    sent = str(statements_of(store, lambda: mine.page(limit=10)))
    assert "thumbnails.number" in sent
    assert "jpeg" not in sent


def test_replaced_with_the_classifier(mine: TenantStore, database_url: str) -> None:
    put(mine, "clf_a")
    left = with_thumbnails({3: JPEGS[3], 5: b"new"})
    mine.replace(classifier("clf_a", revision=2, thumbnails=left.thumbnails_by_class()), left)
    assert mine.describe("clf_a").thumbnails == (None, None, 3, None, 5, None)
    assert mine.support("clf_a")[1].thumbnails == left.thumbnails
    mine.replace(classifier("clf_a", revision=3), support())
    assert count(database_url) == 0


def test_each_version_has_its_own(mine: TenantStore) -> None:
    put(mine, "clf_a", "cats")
    put(mine, "clf_b", "cats")
    mine.delete("cats@2")
    assert mine.thumbnail("cats", 1) == JPEGS[1]


def test_deleted_with_the_classifier(mine: TenantStore, database_url: str) -> None:
    put(mine, "clf_a", "cats")
    put(mine, "clf_b")
    assert count(database_url) == 6
    mine.delete("cats")
    fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: mine.thumbnail("clf_a", 1))
    assert count(database_url) == 3


def test_gone_when_the_classifier_expires_and_deleted_with_its_row(database_url: str) -> None:
    now = datetime(2026, 11, 20, 12, tzinfo=UTC)
    with closing(Store(database_url, clock=lambda: now)) as store:
        mine = store.for_tenant("", show_thumbnails=True)
        put(mine, "clf_a", expires_at=now + timedelta(seconds=10))
        assert mine.thumbnail("clf_a", 1) == JPEGS[1]
        now += timedelta(seconds=10)
        fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: mine.thumbnail("clf_a", 1))
        assert store.purge() == 1
    assert count(database_url) == 0


def test_all_are_deleted_and_nothing_else(
    store: Store, mine: TenantStore, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_THUMBNAILS_AT_ONCE", 2)
    for number in range(3):
        put(mine, f"clf_{number}")
    put(store.for_tenant("other"), "clf_o")
    assert store.delete_thumbnails() == 12
    assert store.delete_thumbnails() == count(database_url) == 0
    assert store.count() == 4
    assert mine.thumbnail("clf_0", 1) is None
    record, examples = mine.support("clf_0")
    assert (record.thumbnails, examples.thumbnails) == ((), {})
    assert np.array_equal(examples.embeddings, support().embeddings)


@pytest.mark.parametrize("one", [True, False])
def test_what_is_deleted_is_overwritten_in_the_file(tmp_path: Path, one: bool) -> None:
    """One classifier: when the file is closed, at the latest. All thumbnails: at once."""
    path = tmp_path / "x.db"
    jpeg = np.random.default_rng(0).bytes(3000)

    def found() -> bool:
        return any(jpeg[1000:1050] in file.read_bytes() for file in tmp_path.iterdir())

    with closing(Store(f"sqlite:///{path}")) as store:
        mine = store.for_tenant("")
        examples = with_thumbnails({1: jpeg})
        mine.add(classifier("clf_a"), examples, limit=10)
        assert found()
        if one:
            mine.delete("clf_a")
        else:
            store.delete_thumbnails()
            assert not found()
    assert not found()


def test_classifiers_of_before_have_none(database_url: str) -> None:
    migrate_to(database_url, "0007")
    insert_classifier(database_url, 9, labels='["a"]', examples="[1]", horizon_rule="learned")
    with closing(Store(database_url)) as store:
        mine = store.for_tenant("", show_thumbnails=True)
        assert mine.describe("clf_9").thumbnails == ()
        assert mine.thumbnail("clf_9", 1) is None
        put(mine, "clf_a")
        assert mine.describe("clf_a").thumbnails == SHOWN
