"""The rate limit of each key."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from comln_serve.configuration.settings import Settings
from comln_serve.errors import ErrorCode
from comln_serve.security.keys import Scope
from comln_serve.security.rate_limit import RateLimiter
from tests.support.engines import Serve
from tests.support.keyed import bearer, keyed, keyed_settings, new_key, store_of
from tests.support.messages import check_error

__all__ = ["keyed", "keyed_settings"]  # fixtures


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_is_emptied_and_fills_evenly() -> None:
    clock = Clock()
    with closing(RateLimiter(clock=clock)) as limiter:
        assert [limiter.take("a", 3) for _ in range(4)] == [0.0, 0.0, 0.0, 20.0]
        clock.now += 15.0
        assert limiter.take("a", 3) == 5.0
        clock.now += 5.0
        assert [limiter.take("a", 3) for _ in range(2)] == [0.0, 20.0]
        clock.now += 3600.0
        assert [limiter.take("a", 3) for _ in range(4)] == [0.0, 0.0, 0.0, 20.0], "no more than full"


def test_keys_have_a_bucket_each() -> None:
    with closing(RateLimiter(clock=Clock())) as limiter:
        assert [limiter.take(key, 1) for key in "aabb"] == [0.0, 60.0, 0.0, 60.0]


@settings(deadline=None)  # a busy machine makes single examples slow
@given(st.integers(1, 500), st.lists(st.tuples(st.floats(0.0, 100.0), st.sampled_from("abc")), max_size=200))
def test_no_minute_sees_more_than_two_buckets(limit: int, requests: list[tuple[float, str]]) -> None:
    """What was saved up and what comes in within it; a request that was told when to come is let
    in then.
    """
    clock = Clock()
    with closing(RateLimiter(clock=clock)) as limiter:
        taken: dict[str, list[float]] = {}
        for pause, key in requests:
            clock.now += pause
            wait = limiter.take(key, limit)
            if wait:
                clock.now += wait + 1e-6
                assert limiter.take(key, limit) == 0.0
            times = taken.setdefault(key, [])
            times.append(clock.now)
            assert sum(clock.now - time < 60.0 for time in times) <= 2 * limit


def test_buckets_that_are_full_again_are_forgotten(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "buckets.sqlite"
    with closing(RateLimiter(file, clock)) as limiter, closing(sqlite3.connect(file)) as database:
        for number in range(1000):
            limiter.take(str(number), 1)
        assert database.execute("SELECT count(*) FROM buckets").fetchone() == (1000,)
        clock.now += 20.0
        limiter.take("late", 1)
        clock.now += 40.0
        assert limiter.take("late", 1) == pytest.approx(20.0), "that of a key of the last minute stays"
        assert database.execute("SELECT count(*) FROM buckets").fetchone() == (1,)


def test_while_another_process_keeps_the_file_locked_nobody_waits(tmp_path: Path) -> None:
    """As one that was stopped in the middle. Any other failure is an error."""
    file = tmp_path / "buckets.sqlite"
    with closing(RateLimiter(file, Clock())) as limiter:
        limiter.take("a", 1)
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            assert limiter.take("a", 1) == 0.0
            assert time.monotonic() - began < 4  # seconds; SQLite itself would wait for five
            other.execute("ROLLBACK")
            assert limiter.take("a", 1) > 0
            other.execute("DROP TABLE buckets")
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            limiter.take("a", 1)


def test_requests_over_a_keys_limit_are_told_when_to_come(keyed: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = bearer(new_key(store_of(keyed), requests_per_minute=2))
    other = bearer(new_key(store_of(keyed)))
    for _ in range(2):
        assert keyed.get("/models", headers=limited).status_code == 200
    answer = keyed.get("/models", headers=limited)
    error = check_error(answer, ErrorCode.RATE_LIMITED)
    assert 1 <= int(answer.headers["retry-after"]) <= 30
    assert error["detail"] == {"limit": 2, "retry_after_seconds": int(answer.headers["retry-after"])}
    assert keyed.get("/health/ready", headers=limited).status_code == 200
    assert keyed.get("/models", headers=other).status_code == 200, "no limit without one"
    monkeypatch.setattr(RateLimiter, "take", lambda *_: 0.2)
    assert keyed.get("/models", headers=limited).headers["retry-after"] == "1", "not before"


def test_the_servers_limit_is_for_keys_without_their_own(keyed_settings: Settings, serve: Serve) -> None:
    client = serve(keyed_settings, requests_per_minute=1)
    plain = bearer(new_key(store_of(client)))
    own = bearer(new_key(store_of(client), requests_per_minute=3))
    for _ in range(5):  # who is no one takes from nobody
        assert client.get("/models").status_code == 401
        assert client.get("/models", headers=bearer(plain_id(plain))).status_code == 401
    for headers, allowed in ((plain, 1), (own, 3)):
        answers = [client.get("/limits", headers=headers) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200] * allowed + [429] * (5 - allowed)
        assert answers[0].json()["requests_per_minute"] == allowed


def plain_id(headers: dict[str, str]) -> str:
    """A key of the same id with another secret."""
    return headers["Authorization"].removeprefix("Bearer ")[: -len("0" * 64)] + "0" * 64


def test_what_is_refused_for_its_scope_counts(keyed: TestClient) -> None:
    key = bearer(new_key(store_of(keyed), "acme", Scope.PREDICT, requests_per_minute=2))
    statuses = [keyed.get("/metrics", headers=key).status_code for _ in range(3)]
    assert statuses == [403, 403, 429]
