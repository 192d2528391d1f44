"""Expired classifiers are gone at once, and their rows soon after."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from fastapi.testclient import TestClient

from comln_serve.engine.classifiers import housekeeping
from comln_serve.engine.engine import NewClassifier
from comln_serve.errors import ErrorCode
from comln_serve.storage import ChangedError, IdempotencyKey, Store, TenantStore
from comln_serve.storage import store as store_module
from comln_serve.storage.database import Database
from comln_serve.storage.idempotency import claim
from tests.support.classifiers import add, classifier, ids, support
from tests.support.databases import execute
from tests.support.engines import MakeEngine, fails, predict
from tests.support.image_files import colour_support, image_bytes
from tests.support.messages import check_error, engine_of
from tests.support.waiting import wait_until

START = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Clock:
    """A clock that is put forward by hand."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(database_url: str, clock: Clock) -> Iterator[Store]:
    with closing(Store(database_url, clock=clock)) as store:
        yield store


def in_seconds(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_gone_to_every_call_from_that_moment(mine: TenantStore, store: Store, clock: Clock) -> None:
    add(mine, "clf_a", expires_at=in_seconds(10))
    add(mine, "clf_b", "cats", expires_at=in_seconds(10.000001))
    clock.now = in_seconds(9.999999)
    assert store.count() == 2
    for moment, gone, left in ((10, "clf_a", ["clf_b"]), (10.000001, "clf_b", [])):
        clock.now = in_seconds(moment)
        assert mine.resolve(gone) is None
        for call in (mine.find, mine.describe, mine.support, mine.promote, mine.delete):
            fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda c=call, key=gone: c(key))
        with pytest.raises(ChangedError):
            mine.replace(classifier(gone, revision=2), support())
        assert ids(mine) == left
        assert store.count() == len(left)
    fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: mine.roll_back("cats"))
    fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: mine.find("cats@1"))
    add(mine, "clf_c", limit=1)


def test_a_name_falls_back_when_its_version_expires(mine: TenantStore, clock: Clock) -> None:
    add(mine, "clf_1", "cats")
    add(mine, "clf_2", "cats", expires_at=in_seconds(10))
    add(mine, "clf_3", "cats", promote=False, expires_at=in_seconds(20))

    def current() -> str | None:
        found = mine.resolve("cats")
        return found and found.id

    assert current() == "clf_2"
    clock.now = in_seconds(10)
    assert current() == "clf_1", "the one promoted before"
    mine.delete("clf_1")
    assert current() == "clf_3", "the newest there is"
    clock.now = in_seconds(20)
    assert current() is None
    made = add(mine, "clf_4", "cats", promote=False)
    assert (made.version, made.promoted) == (4, True)


def test_purging_removes_rows_and_nothing_else(
    mine: TenantStore, store: Store, clock: Clock, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(3):
        add(mine, f"clf_{i}", "cats", expires_at=in_seconds(10))
    add(mine, "clf_kept", expires_at=in_seconds(11))
    add(mine, "clf_always")
    clock.now = in_seconds(10)
    monkeypatch.setattr(store_module, "_AT_ONCE", 2)
    assert store.purge() == 3
    assert store.purge() == 0
    for table in ("classifiers", "supports"):
        assert execute(database_url, f"SELECT count(*) FROM {table}") == [(2,)]
    assert ids(mine) == ["clf_always", "clf_kept"]
    assert add(mine, "clf_new", "cats").version == 4, "numbers are not given again"


def test_a_key_that_is_claimed_anew_while_it_is_purged_is_kept(
    mine: TenantStore, store: Store, clock: Clock, database_url: str
) -> None:
    add(mine, "clf_old", key=IdempotencyKey("key", "print", in_seconds(10)))
    clock.now = in_seconds(10)
    again = IdempotencyKey("key", "print", in_seconds(20))
    with closing(Database(database_url)) as other, ThreadPoolExecutor(1) as pool:
        with other.writing() as connection:
            claim(connection, "", again, "clf_new", clock.now)
            purging = pool.submit(store.purge)
            assert not wait((purging,), timeout=1).done, "it waits for the row, or the file"
        assert purging.result() == 0
    assert mine.made_by(again) == ("clf_new", ())


def test_a_server_purges_by_itself(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    monkeypatch.setattr(housekeeping, "_EVERY_SECONDS", 0.01)
    engine = make_engine(database_url=database_url)
    made = engine.adapt(colour_support(1), NewClassifier(expires_in_seconds=3600)).classifier
    assert made.expires_at == made.created_at + timedelta(hours=1)
    kept = engine.adapt(colour_support(1)).classifier
    assert predict(engine, [image_bytes()], made.id).classifier is made
    monkeypatch.setattr(engine.store, "_clock", lambda: made.expires_at)
    fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: predict(engine, [image_bytes()], made.id))
    wait_until(lambda: execute(database_url, "SELECT id FROM classifiers") == [(kept.id,)])


def test_a_server_goes_on_purging_after_the_database_was_away(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "_EVERY_SECONDS", 0.01)
    engine = make_engine()
    engine.warm()
    engine.store._database._closed = True
    calls: list[None] = []
    purge = engine.store.purge
    monkeypatch.setattr(engine.store, "purge", lambda: (calls.append(None), purge())[1])
    wait_until(lambda: len(calls) >= 2)


def test_a_server_goes_on_purging_after_a_bug(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(housekeeping, "_EVERY_SECONDS", 0.01)
    engine = make_engine()
    calls: list[None] = []

    def purge() -> int:
        calls.append(None)
        raise ZeroDivisionError("made up")

    monkeypatch.setattr(engine.store, "purge", purge)
    engine.warm()
    wait_until(lambda: len(calls) >= 3)
    engine.check()
    assert "ZeroDivisionError: made up" in caplog.text


def test_a_server_whose_housekeeping_has_ended_is_not_ready(client: TestClient) -> None:
    assert client.get("/health/ready").status_code == 200
    kept = engine_of(client)._housekeeping
    assert kept is not None
    kept.close()
    error = check_error(client.get("/health/ready"), ErrorCode.NOT_READY)
    assert "removes expired classifiers" in error["message"]


def test_what_has_expired_is_found_by_an_index(store: Store, database_url: str) -> None:
    """Of all tenants: the index that begins with the tenant is of no use."""
    some = "SELECT sequence FROM classifiers WHERE expires_at <= '2026-01-01' LIMIT 500"
    if database_url.startswith("sqlite"):
        plan = execute(database_url, f"EXPLAIN QUERY PLAN {some}")
    else:  # a table of no rows is quicker to scan
        plan = execute(f"{database_url}%20-cenable_seqscan%3Doff", f"EXPLAIN {some}")
    assert "classifiers_by_expiry_of_all" in str(plan)
    assert "SCAN" not in str(plan)
