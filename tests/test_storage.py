"""The SQLite store: what was acknowledged is there, as it was, and failures are said plainly."""

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from comln_serve.classifier import Classifier
from comln_serve.errors import ErrorCode, ServiceError, StartupError
from comln_serve.storage import SqliteStore, open_store


def classifier(id: str, name: str | None = None, *, seed: int = 0) -> Classifier:  # noqa: A002
    rng = np.random.default_rng(seed)
    return Classifier(
        id=id,
        name=name,
        model="tiny",
        embedder_sha256="0" * 64,
        labels=(
            "a",
            "a ",
            "\N{CAT FACE}\u0301",
            "\u05e9\u05dc\u05d5\u05dd",
            "nul\0",
            "line\n'\";--",
        ),
        examples=(1, 2, 3, 4, 5, 6),
        horizon=0.1 + seed,
        support_loss=1 / 3,
        support_accuracy=2 / 3,
        created_at=datetime(2026, 11, 20, 12, 30, 1, 234567, tzinfo=UTC),
        W=rng.standard_normal((6, 4)).astype(np.float32),
    )


def equal(first: Classifier | None, second: Classifier) -> bool:
    """Equal to the last bit."""
    if first is None:
        return False
    ours, theirs = dict(vars(first)), dict(vars(second))
    W, expected = ours.pop("W"), theirs.pop("W")
    return ours == theirs and W.dtype == expected.dtype and np.array_equal(W, expected)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "classifiers.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path)) as store:
        yield store


def unavailable(action: Callable[[], object]) -> str:
    with pytest.raises(ServiceError) as caught:
        action()
    assert caught.value.code is ErrorCode.STORAGE_UNAVAILABLE
    return caught.value.message


def every_method(store: SqliteStore) -> list[Callable[[], object]]:
    return [
        lambda: store.add(classifier("clf_new")),
        lambda: store.resolve("clf_a"),
        lambda: store.find("clf_a"),
        lambda: store.page(limit=10, before=None),
        lambda: store.delete("clf_a"),
        store.count,
    ]


def test_found_by_id_and_by_name(store: SqliteStore) -> None:
    store.add(classifier("clf_a", "cats", seed=1))
    store.add(classifier("clf_b", seed=2))
    assert equal(store.find("clf_a"), classifier("clf_a", "cats", seed=1))
    assert equal(store.find("cats"), classifier("clf_a", "cats", seed=1))
    assert equal(store.find("clf_b"), classifier("clf_b", seed=2))
    assert store.find("dogs") is None
    assert store.find("") is None
    assert store.count() == 2


def test_resolve_says_which_id_find_would_find(store: SqliteStore) -> None:
    for key, name in (("clf_a", "cats"), ("clf_b", "cats"), ("clf_c", None)):
        store.add(classifier(key, name))
    for key, expected in {
        "clf_a": "clf_a", "clf_c": "clf_c", "cats": "clf_b", "dogs": None, "": None,
    }.items():  # fmt: skip
        assert store.resolve(key) == expected
    store.delete("clf_b")
    assert [store.resolve(key) for key in ("cats", "clf_b")] == ["clf_a", None]


def test_names_are_exact(store: SqliteStore) -> None:
    store.add(classifier("clf_a", "cats"))
    assert [store.find(name) for name in ("Cats", "cats ", "cat_", "cat%", "CLF_A")] == [None] * 5


def test_newest_of_a_name_and_back(store: SqliteStore) -> None:
    for position, id_ in enumerate(("clf_a", "clf_b", "clf_c")):
        store.add(classifier(id_, "cats", seed=position))
    for id_ in ("clf_c", "clf_b", "clf_a"):
        found = store.find("cats")
        assert found is not None
        assert found.id == id_
        assert store.delete(id_)
    assert store.find("cats") is None


def test_an_id_goes_before_a_name(store: SqliteStore) -> None:
    store.add(classifier("clf_a", "clf_b"))
    store.add(classifier("clf_b", "other"))
    found = store.find("clf_b")
    assert found is not None
    assert found.id == "clf_b"


def test_delete(store: SqliteStore) -> None:
    store.add(classifier("clf_a", "cats"))
    assert store.delete("clf_a")
    assert not store.delete("clf_a")
    assert not store.delete("cats"), "delete takes ids only"
    assert store.find("clf_a") is None
    assert store.count() == 0


def test_same_id_twice_changes_nothing(store: SqliteStore) -> None:
    store.add(classifier("clf_a", "cats"))
    unavailable(lambda: store.add(classifier("clf_a", "dogs")))
    assert equal(store.find("clf_a"), classifier("clf_a", "cats"))
    assert store.count() == 1


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_pages_hold_everything_once_newest_first(store: SqliteStore, limit: int) -> None:
    for i in range(7):
        store.add(classifier(f"clf_{i}"))
    seen: list[str] = []
    before = None
    while True:
        page, before = store.page(limit=limit, before=before)
        assert 1 <= len(page) <= limit
        seen += [item.id for item in page]
        if before is None:
            break
    assert seen == [f"clf_{i}" for i in reversed(range(7))]


def test_page_of_nothing(store: SqliteStore) -> None:
    assert store.page(limit=5, before=None) == ([], None)
    store.add(classifier("clf_a"))
    assert store.page(limit=5, before=0) == ([], None)


@pytest.mark.parametrize("deleted", ["clf_5", "clf_4", "clf_3"])
def test_changes_between_pages_neither_repeat_nor_skip(store: SqliteStore, deleted: str) -> None:
    """Deleted: one already shown, the last one shown, the first of the next page."""
    for i in range(6):
        store.add(classifier(f"clf_{i}"))
    first, before = store.page(limit=2, before=None)
    store.delete(deleted)
    store.add(classifier("clf_late"))
    second, _ = store.page(limit=10, before=before)
    assert [item.id for item in first] == ["clf_5", "clf_4"]
    assert [item.id for item in second] == [
        id_ for id_ in ("clf_3", "clf_2", "clf_1", "clf_0") if id_ != deleted
    ]


def test_a_sequence_number_is_never_given_twice(store: SqliteStore) -> None:
    """A page's start would point at another classifier otherwise."""
    for i in range(3):
        store.add(classifier(f"clf_{i}"))
    _, before = store.page(limit=1, before=None)
    store.delete("clf_2")
    store.add(classifier("clf_new"))
    page, _ = store.page(limit=10, before=before)
    assert [item.id for item in page] == ["clf_1", "clf_0"]


def test_survives_reopening_to_the_last_bit(path: Path) -> None:
    originals = [classifier(f"clf_{i}", "same", seed=i) for i in range(3)]
    with closing(SqliteStore(path)) as store:
        for original in originals:
            store.add(original)
    with closing(SqliteStore(path)) as store:
        assert all(equal(store.find(original.id), original) for original in originals)
        assert equal(store.find("same"), originals[-1])


def test_weights_keep_special_values(store: SqliteStore) -> None:
    values = np.array([[-0.0, 1e-45, 3.4e38]], dtype=np.float32)
    original = classifier("clf_a")
    store.add(Classifier(**{**vars(original), "labels": ("x",), "examples": (1,), "W": values}))
    found = store.find("clf_a")
    assert found is not None
    assert found.W.tobytes() == values.tobytes()


def test_time_is_kept_in_utc(store: SqliteStore) -> None:
    local = datetime(2026, 11, 20, 14, 0, tzinfo=timezone(timedelta(hours=2)))
    store.add(Classifier(**{**vars(classifier("clf_a")), "created_at": local}))
    found = store.find("clf_a")
    assert found is not None
    assert found.created_at == local
    assert found.created_at.utcoffset() == timedelta(0)


def test_write_ahead_log_flushed_at_every_commit(store: SqliteStore, path: Path) -> None:
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_committed_classifier_is_seen_by_another_process(store: SqliteStore, path: Path) -> None:
    """`add` returned: nothing is left in a transaction of this connection."""
    store.add(classifier("clf_a"))
    with closing(SqliteStore(path)) as other:
        assert equal(other.find("clf_a"), classifier("clf_a"))


@pytest.mark.parametrize("version", [2, 99, -1])
def test_other_schema_version_is_refused(path: Path, version: int) -> None:
    SqliteStore(path).close()
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(StartupError, match=f"schema version {version}; this release knows 1"):
        SqliteStore(path)


@pytest.mark.parametrize("content", [b"not a database at all, just text " * 40, b"\xff" * 4096])
def test_file_that_is_no_database_is_refused_and_kept(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StartupError, match=r"cannot use .* as the database"):
        SqliteStore(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("version", [0, 1])
def test_database_of_another_program_is_refused_and_kept(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE bookmarks (url TEXT)")
        other.execute(f"PRAGMA user_version = {version}")
    content = path.read_bytes()
    with pytest.raises(StartupError, match="another program"):
        SqliteStore(path)
    assert path.read_bytes() == content


def test_missing_folder_and_folder_as_file(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="folder"):
        SqliteStore(tmp_path / "absent" / "classifiers.db")
    with pytest.raises(StartupError, match="cannot use"):
        SqliteStore(tmp_path)


@pytest.mark.parametrize(
    "url", ["postgres://host/db", "sqlite:///", "sqlite://file.db", "x.db", ""]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(StartupError, match="must read sqlite:///FILE"):
        open_store(url)


def test_url_with_absolute_path(path: Path) -> None:
    with closing(open_store(f"sqlite:///{path}")) as store:
        assert store.count() == 0
    assert path.is_file()


def test_closed_store_is_unavailable(path: Path) -> None:
    store = SqliteStore(path)
    store.close()
    for action in every_method(store):
        assert "closed" in unavailable(action)


def test_locked_database_is_unavailable_to_writers_only(store: SqliteStore, path: Path) -> None:
    store.add(classifier("clf_a"))
    store._connection.execute("PRAGMA busy_timeout = 20")  # instead of five seconds
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert "locked" in unavailable(lambda: store.add(classifier("clf_b")))
        assert "locked" in unavailable(lambda: store.delete("clf_a"))
        assert store.count() == 1
        other.execute("ROLLBACK")
    store.add(classifier("clf_b"))
    assert store.count() == 2


def test_readonly_database_is_unavailable_to_writers_only(store: SqliteStore) -> None:
    """As with a disk that was remounted read-only; file modes do not stop an administrator."""
    store.add(classifier("clf_a"))
    store._connection.execute("PRAGMA query_only = ON")
    assert "readonly" in unavailable(lambda: store.add(classifier("clf_b")))
    assert "readonly" in unavailable(lambda: store.delete("clf_a"))
    store._connection.execute("PRAGMA query_only = OFF")
    assert equal(store.find("clf_a"), classifier("clf_a"))
    store.add(classifier("clf_b"))


def test_dropped_table_is_unavailable(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE classifiers")
    for action in every_method(store):
        assert "no such table" in unavailable(action)


def test_threads_add_together(store: SqliteStore) -> None:
    start = Barrier(8)

    def work(thread: int) -> None:
        start.wait()
        for i in range(10):
            added = classifier(f"clf_{thread}_{i}", f"name-{thread}", seed=100 * thread + i)
            store.add(added)
            assert equal(store.find(added.id), added)
            assert equal(store.find(f"name-{thread}"), added)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert store.count() == 80
    page, following = store.page(limit=100, before=None)
    assert following is None
    assert {item.id for item in page} == {f"clf_{t}_{i}" for t in range(8) for i in range(10)}


def test_servers_that_start_together_share_a_new_database(path: Path) -> None:
    start = Barrier(4)

    def work(server: int) -> None:
        start.wait()
        with closing(SqliteStore(path)) as store:
            store.add(classifier(f"clf_{server}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    with closing(SqliteStore(path)) as store:
        assert store.count() == 4
