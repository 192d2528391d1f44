"""The store keeps classifiers and support sets to the last bit, on SQLite and on PostgreSQL."""

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest

from comln_serve.domain.report import HeldOutReport, HorizonCandidate, HorizonChoice, Report, Suspect
from comln_serve.domain.support import SupportSet
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.storage import ChangedError, Resolved, Store, TenantStore
from tests.support.classifiers import HASHES, LABELS, add, classifier, ids, same, support
from tests.support.databases import execute, statements_of
from tests.support.engines import fails
from tests.support.waiting import at_once

REPORT = Report(
    held_out=HeldOutReport(
        folds=2,
        judged=3,
        accuracy=1 / 3,
        confusion=[[1, 0], [2, 0]],
        suspects=[Suspect(number=2, label="a", likelier="nul\0", score=0.96)],
        predicted=[0, None, 1],
    ),
    notes=["\N{CAT FACE}"],
    near_duplicates=[[1, 3]],
    contradictory=[[2, 3]],
    horizon_choice=HorizonChoice(
        learned=0.1,
        least_loss=1.0,
        level=(0.1, 1.0),
        candidates=[HorizonCandidate(horizon=0.1, loss=1 / 3, accuracy=2 / 3)],
    ),
    own_horizon=False,
    unknown_threshold=2 / 3,
    nearest_other_class=0.25,
    temperature=1.5,
)


def test_found_by_id_and_by_name(mine: TenantStore, store: Store) -> None:
    one = add(mine, "clf_a", "cats", seed=1)
    two = add(mine, "clf_b", seed=2)
    assert (one.version, one.promoted) == (1, True)
    assert (two.version, two.promoted) == (None, False)
    for reference, expected in {"clf_a": one, "cats": one, "cats@1": one, "clf_b": two}.items():
        assert same(mine.find(reference), expected)
        assert mine.resolve(reference) == Resolved(expected.id, 1)
        described = mine.describe(reference)
        assert vars(described) == {k: v for k, v in vars(expected).items() if k != "W"}
    assert store.count() == 2


@pytest.mark.parametrize(
    "reference",
    [
        "dogs",
        "",
        "Cats",
        "cats ",
        "cat_",
        "cat%",
        "CLF_A",
        "cats@2",
        "cats@0",
        "cats@",
        "cats@1 ",
        "cats@01",
        "cats@1\n",
        "clf_a@1",
        "@1",
        "a\0b",
        "\ud800",
        "cats@9999999999",
        "x" * 70,
    ],
)
def test_what_names_nothing_is_not_found(mine: TenantStore, reference: str) -> None:
    add(mine, "clf_a", "cats")
    assert mine.resolve(reference) is None
    for call in (mine.find, mine.describe, mine.support, mine.delete, mine.promote):
        fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda c=call: c(reference))
    if "@" not in reference:
        fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: mine.roll_back(reference))
    assert mine.find("cats")


@pytest.mark.parametrize("expires", [None, -1, 3600])
def test_resolving_finds_what_finding_does(mine: TenantStore, expires: int | None) -> None:
    at = None if expires is None else datetime.now(UTC) + timedelta(seconds=expires)
    add(mine, "clf_a", "cats")
    add(mine, "clf_b", "cats", expires_at=at)
    add(mine, "clf_c", expires_at=at)
    for reference in ("clf_a", "clf_b", "clf_c", "cats", "cats@1", "cats@2"):
        resolved = mine.resolve(reference)
        if resolved is None:
            fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda r=reference: mine.find(r))
        else:
            found = mine.find(reference)
            assert resolved == Resolved(found.id, found.revision)


def test_every_field_is_kept_to_the_last_bit(database_url: str) -> None:
    made = classifier(
        "clf_a",
        "cats",
        horizon_rule="given",
        metadata={"line": "3", "\N{CAT FACE}": "\0"},
        report=REPORT,
        expires_at=datetime(9000, 1, 1, tzinfo=UTC),
        W=np.array([[-0.0, 1e-45, 3.4e38, -1.0]] * 6, dtype=np.float32),
    )
    kept = support(3)
    with closing(Store(database_url)) as store:
        stored = store.for_tenant("").add(made, kept, limit=10)
    assert same(stored, replace(made, version=1, promoted=True))
    with closing(Store(database_url)) as store:
        found = store.for_tenant("").find("cats")
        assert same(found, stored)
        assert found.W.tobytes() == made.W.tobytes()
        read = store.for_tenant("").support("clf_a")
    assert read[1].embeddings.tobytes() == kept.embeddings.tobytes()
    assert read[1].embeddings.dtype == np.float32
    assert (read[1].labels, read[1].hashes) == (LABELS, HASHES)
    assert (read[1].numbers, read[1].next_number) == ((1, 2, 3, 4, 5, 6), 7)


def test_time_is_kept_in_utc(mine: TenantStore) -> None:
    local = datetime(2026, 11, 20, 14, 0, tzinfo=timezone(timedelta(hours=2)))
    add(mine, "clf_a", created_at=local)
    found = mine.find("clf_a")
    assert found.created_at == local
    assert found.created_at.utcoffset() == timedelta(0)


def test_delete(mine: TenantStore, store: Store) -> None:
    add(mine, "clf_a", "cats")
    assert mine.delete("clf_a") == Resolved("clf_a", 1)
    fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: mine.delete("clf_a"))
    fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: mine.find("clf_a"))
    fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: mine.support("clf_a"))
    assert store.count() == 0


def test_same_id_twice_changes_nothing(mine: TenantStore, store: Store) -> None:
    made = add(mine, "clf_a", "cats")
    with pytest.raises(ServiceError) as caught:
        add(mine, "clf_a", "dogs")
    assert caught.value.code is ErrorCode.STORAGE_UNAVAILABLE
    assert same(mine.find("clf_a"), made)
    fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: mine.find("dogs"))
    assert store.count() == 1


def test_tenants_know_nothing_of_each_other(store: Store) -> None:
    one, other = store.for_tenant("one"), store.for_tenant("other")
    add(one, "clf_a", "cats")
    assert add(other, "clf_b", "cats").version == 1
    assert add(one, "clf_c", "cats").version == 2
    assert (ids(one), ids(other)) == (["clf_c", "clf_a"], ["clf_b"])
    for reference in ("clf_a", "cats@2", "clf_c"):
        assert other.resolve(reference) is None
        for call in (other.find, other.support, other.delete, other.promote):
            fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda c=call, key=reference: c(key))
    with pytest.raises(ChangedError):
        other.replace(classifier("clf_a", revision=2), support())
    assert other.find("cats").id == "clf_b"
    other.delete("cats")
    assert [store.count(), ids(one)] == [2, ["clf_c", "clf_a"]]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_pages_hold_everything_once_newest_first(mine: TenantStore, limit: int) -> None:
    for i in range(7):
        add(mine, f"clf_{i}")
    seen: list[str] = []
    before = None
    while True:
        page, before = mine.page(limit=limit, before=before)
        assert 1 <= len(page) <= limit
        seen += [item.id for item in page]
        if before is None:
            break
    assert seen == [f"clf_{i}" for i in reversed(range(7))]


def test_page_of_nothing(mine: TenantStore) -> None:
    assert mine.page(limit=5) == ([], None)
    add(mine, "clf_a")
    assert mine.page(limit=5, before=0) == ([], None)


def test_pages_of_a_name_and_of_a_model(mine: TenantStore) -> None:
    add(mine, "clf_a", "cats")
    add(mine, "clf_b", "dogs", model="other")
    add(mine, "clf_c", "cats", model="other", promote=False)
    assert ids(mine, name="cats") == ["clf_c", "clf_a"]
    assert ids(mine, model="other") == ["clf_c", "clf_b"]
    assert ids(mine, name="cats", model="other") == ["clf_c"]
    assert ids(mine, name="cat") == ids(mine, model="absent") == []
    page, following = mine.page(limit=1, name="cats")
    assert [(item.version, item.promoted) for item in page] == [(2, False)]
    page, following = mine.page(limit=1, name="cats", before=following)
    assert [(item.version, item.promoted) for item in page] == [(1, True)]
    assert following is None


@pytest.mark.parametrize("deleted", ["clf_5", "clf_4", "clf_3"])
def test_changes_between_pages_neither_repeat_nor_skip(mine: TenantStore, deleted: str) -> None:
    """Deleted: one already shown, the last one shown, the first of the next page."""
    for i in range(6):
        add(mine, f"clf_{i}")
    first, before = mine.page(limit=2)
    mine.delete(deleted)
    add(mine, "clf_late")
    second, _ = mine.page(limit=10, before=before)
    assert [item.id for item in first] == ["clf_5", "clf_4"]
    assert [item.id for item in second] == [id_ for id_ in ("clf_3", "clf_2", "clf_1", "clf_0") if id_ != deleted]


def test_a_position_is_never_given_twice(mine: TenantStore) -> None:
    """A page's start would point at another classifier otherwise."""
    for i in range(3):
        add(mine, f"clf_{i}")
    _, before = mine.page(limit=1)
    mine.delete("clf_2")
    add(mine, "clf_new")
    page, _ = mine.page(limit=10, before=before)
    assert [item.id for item in page] == ["clf_1", "clf_0"]


def test_pages_tell_nothing_of_other_tenants(mine: TenantStore, store: Store) -> None:
    """Where the next page starts is the same, whatever others have added in between."""
    other = store.for_tenant("other")
    for i in range(3):
        add(mine, f"clf_{i}")
        add(other, f"clf_x{i}")
        add(other, f"clf_y{i}")
    assert mine.page(limit=1)[1] == 3
    assert mine.page(limit=1, before=3)[1] == 2
    assert len(other.page(limit=9)[0]) == 6


def test_no_more_than_the_limit(mine: TenantStore, store: Store) -> None:
    for i in range(3):
        mine.check_room(3)
        add(mine, f"clf_{i}", "cats", limit=3)
    assert fails(ErrorCode.TOO_MANY_CLASSIFIERS, lambda: mine.check_room(3)).detail["stored"] == 3
    store.for_tenant("other").check_room(1)
    with pytest.raises(ServiceError) as caught:
        add(mine, "clf_3", "cats", limit=3)
    assert caught.value.code is ErrorCode.TOO_MANY_CLASSIFIERS
    assert caught.value.detail == {"stored": 3, "limit": 3}
    add(store.for_tenant("other"), "clf_o", limit=1)
    mine.delete("clf_0")
    assert add(mine, "clf_4", "cats", limit=3).version == 4, "a refused one took no number"


def test_replaced_in_place(mine: TenantStore) -> None:
    add(mine, "clf_a")
    changed = classifier("clf_a", seed=5, revision=2)
    more = support().extended(SupportSet.of(np.ones((1, 4), np.float32), [7], ["a"]))
    mine.replace(changed, more)
    assert same(mine.find("clf_a"), changed)
    assert mine.resolve("clf_a") == Resolved("clf_a", 2)
    found = mine.support("clf_a")
    assert (found[1].numbers, found[1].next_number) == ((1, 2, 3, 4, 5, 6, 7), 8)
    assert found[1].hashes == (*HASHES, 7)
    for stale in (1, 2, 4):
        with pytest.raises(ChangedError):
            mine.replace(classifier("clf_a", seed=6, revision=stale), support())
    assert same(mine.find("clf_a"), changed)
    mine.delete("clf_a")
    with pytest.raises(ChangedError):
        mine.replace(classifier("clf_a", revision=3), support())


def test_of_threads_that_replace_the_same_revision_one_succeeds(mine: TenantStore) -> None:
    add(mine, "clf_a")

    def work(thread: int) -> bool:
        try:
            mine.replace(classifier("clf_a", seed=thread, revision=2), support(thread))
        except ChangedError:
            return False
        return True

    won = at_once(work, range(8))
    assert sum(won) == 1
    thread = won.index(True)
    assert same(mine.find("clf_a"), classifier("clf_a", seed=thread, revision=2))
    found = mine.support("clf_a")
    assert np.array_equal(found[1].embeddings, support(thread).embeddings)


def test_threads_add_together(mine: TenantStore, store: Store) -> None:
    def work(thread: int) -> None:
        for i in range(10):
            added = add(mine, f"clf_{thread}_{i}", f"name-{thread}", seed=100 * thread + i)
            assert same(mine.find(added.id), added)
            assert same(mine.find(f"name-{thread}"), added)

    at_once(work, range(8))
    assert store.count() == 80
    assert set(ids(mine)) == {f"clf_{t}_{i}" for t in range(8) for i in range(10)}


def test_what_one_server_commits_another_sees(store: Store, database_url: str) -> None:
    with closing(Store(database_url)) as other:
        made = add(store.for_tenant(""), "clf_a")
        assert same(other.for_tenant("").find("clf_a"), made)
        other.for_tenant("").delete("clf_a")
        fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: store.for_tenant("").find("clf_a"))


def test_a_report_is_stored_as_it_always_was(mine: TenantStore, database_url: str) -> None:
    """A change of this text needs a migration. Reports of earlier releases lack what was added since."""
    add(mine, "clf_a", report=REPORT)
    ((text,),) = execute(database_url, "SELECT report FROM classifiers")
    choice = (
        ' "horizon_choice": {"learned": 0.1, "least_loss": 1.0, "level": [0.1, 1.0], "candidates": '
        '[{"horizon": 0.1, "loss": 0.3333333333333333, "accuracy": 0.6666666666666666}]},'
    )
    added = ', "nearest_other_class": 0.25, "temperature": 1.5'
    predicted, near = ', "predicted": [0, null, 1]', ' "near_duplicates": [[1, 3]], "contradictory": [[2, 3]],'
    assert text == (
        '{"held_out": {"folds": 2, "judged": 3, "accuracy": 0.3333333333333333, "confusion": [[1, 0], [2, 0]], '
        '"suspects": [{"number": 2, "label": "a", "likelier": "nul\\u0000", "score": 0.96}]'
        f'{predicted}}}, "notes": ["\\ud83d\\udc31"],{near}{choice} "own_horizon": false, '
        f'"unknown_threshold": 0.6666666666666666{added}}}'
    )
    earlier = text.replace(choice, "").replace(predicted, "").replace(near, "").replace(added, "")
    execute(database_url, f"UPDATE classifiers SET report = '{earlier}'")
    found = mine.describe("clf_a")
    assert REPORT.held_out is not None
    held_out = REPORT.held_out.model_copy(update={"predicted": None})
    update = {
        "horizon_choice": None,
        "held_out": held_out,
        "near_duplicates": [],
        "contradictory": [],
        "nearest_other_class": None,
        "temperature": None,
    }
    assert found.report == REPORT.model_copy(update=update)


def test_lists_leave_reports_out(mine: TenantStore, store: Store) -> None:
    add(mine, "clf_a", "cats", report=REPORT)
    found = mine.describe("clf_a")
    assert found.report == REPORT
    ((listed,), _) = mine.page(limit=10)
    assert (listed.id, listed.promoted, listed.report) == ("clf_a", True, None)
    sent = str(statements_of(store, lambda: mine.page(limit=10)))
    assert "classifiers.metadata" in sent
    assert "classifiers.report" not in sent


def test_rolling_back_an_unknown_name_leaves_nothing(mine: TenantStore, store: Store, database_url: str) -> None:
    fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: mine.roll_back("dogs"))
    assert execute(database_url, "SELECT * FROM names") == []
    add(mine, "clf_a", "cats")
    mine.delete("cats")
    fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: mine.roll_back("cats"))
    assert add(mine, "clf_b", "cats").version == 2


@pytest.mark.slow
def test_a_list_of_examples_reads_no_embeddings(mine: TenantStore, database_url: str) -> None:
    """Which take megabytes: forty readers at once would take hundreds of these."""
    add(mine, "clf_a", "cats")
    execute(database_url, "UPDATE supports SET embeddings = :bad", bad=b"x")
    found, listed = mine.examples("cats")
    assert found == Resolved("clf_a", 1)
    assert listed == list(enumerate(LABELS, 1))
    with pytest.raises(ValueError):  # noqa: PT011 - NumPy's
        mine.support("cats")
