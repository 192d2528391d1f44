"""Counts of classifiers are kept with every change; no statement of a request reads a whole table."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta

import pytest

from comln_serve.errors import ErrorCode
from comln_serve.storage import ChangedError, IdempotencyKey, Store, TenantStore
from comln_serve.storage import store as store_module
from tests.support.classifiers import add, classifier, support
from tests.support.databases import execute, insert_classifier, insert_row, migrate_to, statements_of
from tests.support.engines import fails
from tests.support.waiting import at_once

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
PAST = NOW - timedelta(seconds=1)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with closing(Store(database_url, clock=lambda: NOW)) as store:
        yield store


def counted(url: str) -> dict[str, int]:
    """What is counted, by tenant; the same as there is, or the test fails."""
    found = dict(execute(url, "SELECT tenant, stored FROM tenants"))
    there = dict.fromkeys(found, 0)
    there |= dict(execute(url, "SELECT tenant, count(*) FROM classifiers GROUP BY tenant"))
    assert found == there
    return found


def test_what_is_added_deleted_and_purged_is_counted(
    store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = store.for_tenant(""), store.for_tenant("theirs")
    for i in range(3):
        add(mine, f"clf_{i}", "cats")
        add(theirs, f"clf_their_{i}", expires_at=PAST if i else None)
    add(mine, "clf_past", expires_at=PAST)
    assert counted(database_url) == {"": 4, "theirs": 3}
    assert store.count() == 4
    mine.delete("cats")
    fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: mine.delete("clf_2"))
    assert counted(database_url) == {"": 3, "theirs": 3}
    monkeypatch.setattr(store_module, "_AT_ONCE", 2)
    assert store.purge() == 3
    assert counted(database_url) == {"": 2, "theirs": 1}
    assert store.count() == 3


def test_what_is_not_added_is_not_counted(mine: TenantStore, store: Store, database_url: str) -> None:
    add(mine, "clf_a")
    fails(ErrorCode.TOO_MANY_CLASSIFIERS, lambda: add(mine, "clf_b", limit=1))
    resolved = mine.resolve("clf_a")
    assert resolved is not None
    mine.delete("clf_a")
    with pytest.raises(ChangedError):
        add(mine, "clf_c", "cats", derived_from=("clf_a", resolved))
    assert execute(database_url, "SELECT * FROM names") == []  # it took no number
    with pytest.raises(ChangedError):
        mine.replace(classifier("clf_a", revision=2), support())
    assert counted(database_url) == {"": 0}
    assert store.count() == 0


def test_room_is_made_by_what_has_expired(mine: TenantStore, store: Store) -> None:
    """Before it is purged, too; for its own tenant."""
    add(store.for_tenant("other"), "clf_other", expires_at=PAST)
    add(mine, "clf_a", expires_at=PAST)
    add(mine, "clf_b")
    mine.check_room(2)
    add(mine, "clf_c", limit=2)
    error = fails(ErrorCode.TOO_MANY_CLASSIFIERS, lambda: mine.check_room(2))
    assert error.detail["stored"] == 2


def test_counts_of_servers_that_purge_add_and_delete_at_once(store: Store, database_url: str) -> None:
    for tenant in ("a", "b"):
        for i in range(20):
            add(store.for_tenant(tenant), f"clf_{tenant}_{i}", expires_at=PAST if i % 2 else None)

    def work(server: tuple[Store, str | None]) -> int:
        """Purge; for a tenant, delete and add instead."""
        store, tenant = server
        if tenant is None:
            return store.purge()
        for i in range(0, 20, 4):
            store.for_tenant(tenant).delete(f"clf_{tenant}_{i}")
            add(store.for_tenant(tenant), f"clf_new_{tenant}_{i}", "cats")
        return 0

    with ExitStack() as stack:
        stores = [stack.enter_context(closing(Store(database_url, clock=lambda: NOW))) for _ in range(4)]
        assert sum(at_once(work, list(zip(stores, (None, None, "a", "b"), strict=True)))) == 20
    assert counted(database_url) == {"a": 10, "b": 10}


def test_keys_are_purged_in_parts(
    mine: TenantStore, store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_AT_ONCE", 2)
    for i in range(5):
        add(mine, f"clf_{i}", key=IdempotencyKey(f"key {i}", "print", PAST if i else NOW + timedelta(seconds=1)))
    assert store.purge() == 0
    assert execute(database_url, "SELECT key FROM idempotency_keys") == [("key 0",)]


def test_classifiers_of_before_are_counted(database_url: str) -> None:
    migrate_to(database_url, "0008")
    for number, tenant in enumerate(("", "", "theirs"), 1):
        insert_classifier(database_url, number, tenant=tenant, horizon_rule="learned")
    for tenant in ("", "theirs", "gone"):
        insert_row(database_url, "tenants", tenant=tenant, last_position=3)
    with closing(Store(database_url)) as store:
        assert counted(database_url) == {"": 2, "theirs": 1, "gone": 0}
        assert store.count() == 3


# --- Plans ---------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Store], object]] = {
    "count": lambda store: store.count(),
    "room": lambda store: store.for_tenant("").check_room(1000),
    "resolve by id": lambda store: store.for_tenant("").resolve("clf_0"),
    "resolve by name": lambda store: store.for_tenant("").resolve("cats"),
    "resolve by version": lambda store: store.for_tenant("").resolve("cats@1"),
    "find": lambda store: store.for_tenant("").find("cats"),
    "support": lambda store: store.for_tenant("").support("cats"),
    "list": lambda store: store.for_tenant("").page(limit=10),
    "list on": lambda store: store.for_tenant("").page(limit=10, before=2),
    "list by name": lambda store: store.for_tenant("").page(limit=10, name="cats"),
    "list by model": lambda store: store.for_tenant("").page(limit=10, model="tiny"),
    "list by name and model": lambda store: store.for_tenant("").page(limit=10, model="tiny", name="cats", before=2),
    "add": lambda store: add(store.for_tenant(""), "clf_new", "cats", promote=False),
    "replace": lambda store: store.for_tenant("").replace(classifier("clf_0", "cats", revision=2), support()),
    "promote": lambda store: store.for_tenant("").promote("cats@1"),
    "roll back": lambda store: store.for_tenant("").roll_back("cats"),
    "delete": lambda store: store.for_tenant("").delete("cats"),
    "purge": lambda store: store.purge(),
}
# Lists that another index would find, too, by reading all of the tenant's classifiers.
INDICES = {
    "list": "classifiers_by_position (tenant=?)",
    "list on": "classifiers_by_position (tenant=? AND position<?)",
    "list by name": "classifiers_by_name (tenant=? AND name=?)",
    "list by model": "classifiers_by_model (tenant=? AND model=?)",
    "list by name and model": "classifiers_by_name (tenant=? AND name=? AND position<?)",
}


@pytest.mark.parametrize("call", CALLS)
def test_no_table_is_read_or_sorted_as_a_whole(store: Store, call: str) -> None:
    for i in range(3):
        add(store.for_tenant(""), f"clf_{i}", "cats", expires_at=PAST if i == 2 else None)
    plans = plans_of(store, lambda: CALLS[call](store))
    assert plans
    for plan in plans:
        for table in ("classifiers", "supports", "names", "idempotency_keys"):
            assert f"SCAN {table}" not in plan
            assert f"Seq Scan on {table}" not in plan
        assert "B-TREE" not in plan, "sorted"
        assert "Sort" not in plan
    if store._database.is_sqlite and call in INDICES:
        assert INDICES[call] in plans[0]


def plans_of(store: Store, call: Callable[[], object]) -> list[str]:
    """How the database carries out each statement of a call."""
    database, statements = store._database, statements_of(store, call)
    plans: list[str] = []
    with database.connection() as connection:
        if not database.is_sqlite:  # a table of few rows is quicker to scan
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        explain = "EXPLAIN QUERY PLAN" if database.is_sqlite else "EXPLAIN"
        for statement, parameters in statements:
            if statement.startswith(("SELECT", "INSERT", "UPDATE", "DELETE")):
                found = connection.exec_driver_sql(f"{explain} {statement}", parameters)
                plans.append("\n".join(str(row[-1]) for row in found))
    return plans
