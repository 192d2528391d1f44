"""Places in a database: tenants take turns, and nobody waits for longer than told."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.places import Places
from comln_serve.storage import Store, database
from tests.support.classifiers import add
from tests.support.waiting import wait_until


def test_tenants_take_turns() -> None:
    places, order = Places(1), list[str]()

    def work(name: str) -> None:
        assert places.take(name[0], 60)
        order.append(name)
        places.give_back()

    assert places.take("z", 60)
    with ThreadPoolExecutor(5) as pool:
        for count, name in enumerate(("a1", "a2", "a3", "b1", "b2"), 1):
            pool.submit(work, name)
            wait_until(lambda count=count: waiting(places) == count)  # type: ignore[misc]
        places.give_back()
    assert order == ["a1", "b1", "a2", "b2", "a3"]
    assert places.take("a", 0)
    assert not places.take("b", 0), "there is one as before"


def waiting(places: Places) -> int:
    return sum(map(len, places._waiting._groups.values()))


def test_who_gives_up_takes_no_place() -> None:
    places = Places(2)
    assert places.take("a", 0)
    assert places.take("a", 0)
    assert not places.take("a", 0.01)
    assert not places.take("b", 0)
    places.give_back()
    assert places.take("b", 0)
    assert not places.take("c", 0)


def test_who_is_told_to_leave_takes_no_place() -> None:
    places, gone = Places(1), Event()
    assert places.take("a", 0)
    with ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(places.take, "b", 60, gone)
        wait_until(lambda: waiting(places) == 1)
        gone.set()
        assert not leaving.result(30)
    assert waiting(places) == 0
    places.give_back()
    assert places.take("c", 0)


def test_a_tenant_with_many_readers_keeps_no_other_waiting(database_url: str) -> None:
    store = Store(database_url)
    add(store.for_tenant("one"), "clf_a")
    places = database._SQLITE_READERS if store._database.is_sqlite else database._POOL_SIZE // 2
    finish = Event()

    def read(tenant: str) -> float:
        began = time.monotonic()
        with store._database.reading(tenant):
            if tenant == "many":
                finish.wait(0.3)
        return time.monotonic() - began

    with ThreadPoolExecutor(60) as pool:
        many = [pool.submit(read, "many") for _ in range(8 * places)]
        time.sleep(0.1)
        assert pool.submit(read, "one").result(30) < 1.2  # one more round; in order it would be eight
        finish.set()
        assert all(task.result(30) >= 0 for task in many)
    store.close()


def test_readers_wait_for_each_other_for_a_bounded_time(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.1)
    monkeypatch.setattr(database, "_SQLITE_READERS", 1)
    monkeypatch.setattr(database, "_POOL_SIZE", 2)
    store = Store(database_url)
    with (
        store._database.reading(),
        pytest.raises(ServiceError, match=r"others have been reading it for 0\.1 s") as caught,
    ):
        store.count()
    assert caught.value.code is ErrorCode.STORAGE_UNAVAILABLE
    assert store.count() == 0
    store.close()
