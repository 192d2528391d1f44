"""Requests with the same Idempotency-Key and the same content make one classifier."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comln_serve.domain.rejected import Rejected
from comln_serve.engine.adapting.adaptation import fingerprint
from comln_serve.engine.adapting.changes import AdaptAgain, Change, RenameClasses
from comln_serve.engine.engine import Adapted, Caller, Engine, NewClassifier
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.storage import IdempotencyKey, KeyTakenError, Store, TenantStore
from tests.support.classifiers import add
from tests.support.engines import MakeEngine, fails
from tests.support.image_files import colour_support, image_bytes
from tests.support.waiting import at_once

KEY = "order-7!"
SUPPORT = colour_support(1)


@pytest.fixture
def engine(make_engine: MakeEngine, database_url: str) -> Engine:
    return make_engine(database_url=database_url)


def adapt(engine: Engine, *, key: str | None = KEY, tenant: str = "", **options: Any) -> Adapted:
    return engine.adapt(SUPPORT, NewClassifier(**{"name": "letters", **options}), Caller(tenant, key))


def test_a_repeated_request_gets_the_classifier_of_the_first(engine: Engine) -> None:
    first = adapt(engine)
    second = adapt(engine)
    assert (first.replayed, second.replayed) == (False, True)
    assert vars(second.classifier) | {"W": None} == vars(first.classifier) | {"W": None}
    assert second.classifier.W.tobytes() == first.classifier.W.tobytes()
    assert list(second.timings_ms) == ["total"], "nothing was decoded, embedded or solved"
    assert adapt(engine, key=None).classifier.version == 2
    assert adapt(engine, key="other").classifier.version == 3
    assert adapt(engine, tenant="other").classifier.version == 1
    assert engine.store.count() == 4


@pytest.mark.parametrize(
    "other",
    [
        {"name": "digits"},
        {"name": None},
        {"horizon": 3.0},
        {"promote": False},
        {"model": "tiny"},
        {"metadata": {"a": "b"}},
        {"expires_in_seconds": 1000},
    ],
    ids=str,
)
def test_another_request_with_the_key_is_refused(engine: Engine, other: dict[str, Any]) -> None:
    adapt(engine)
    error = fails(ErrorCode.IDEMPOTENCY_MISMATCH, lambda: adapt(engine, **other))
    assert "another request" in error.message
    assert engine.store.count() == 1


def test_a_partial_request_is_another_one(engine: Engine) -> None:
    adapt(engine)
    new, caller = NewClassifier(name="letters"), Caller("", KEY)
    fails(ErrorCode.IDEMPOTENCY_MISMATCH, lambda: engine.adapt(SUPPORT, new, caller, partial=True))


def test_other_images_labels_and_orders_are_other_requests() -> None:
    requests = [
        [(b"1", "a"), (b"2", "b")],
        [(b"2", "b"), (b"1", "a")],
        [(b"1", "b"), (b"2", "a")],
        [(b"12", "a"), (b"", "b")],
        [(b"1", "a"), (b"2", "b\ud83d")],
        [(b"1", "a")],
        *([(ServiceError(ErrorCode.INVALID_IMAGE, why), "a"), (b"2", "b")] for why in ("no base64", "a URL")),
    ]
    prints = {fingerprint("adapt", support, {}) for support in requests}
    prints.add(fingerprint("examples", requests[0], {}))
    assert len(prints) == 9
    assert fingerprint("adapt", requests[0], {"a": 1, "b": {"x": "1", "y": "2"}}) == fingerprint(
        "adapt", list(requests[0]), {"b": {"y": "2", "x": "1"}, "a": 1}
    )


def test_a_key_outlives_an_update_of_the_server() -> None:
    """The digest of a plain request, as the first servers stored it."""
    stored = "2341488aaa99a6dba66afcc260a8f1462acaf46f9df676da09e7fe28013660d5"
    assert fingerprint("adapt", [(b"1", "a")], vars(NewClassifier())) == stored


def test_failed_requests_are_not_remembered(engine: Engine) -> None:
    bad = [(b"not an image", "red"), SUPPORT[1]]
    fails(ErrorCode.INVALID_IMAGE, lambda: engine.adapt(bad, caller=Caller(idempotency_key=KEY)))
    assert not adapt(engine).replayed


def test_threads_on_two_servers_with_one_key_make_one_classifier(servers: tuple[Engine, Engine]) -> None:
    for engine in servers:
        engine.warm()
    done = at_once(adapt, 4 * servers)
    assert [item.replayed for item in done].count(False) == 1
    assert len({item.classifier.id for item in done}) == 1
    assert {item.classifier.version for item in done} == {1}
    assert servers[0].store.count() == 1


def test_a_repeat_that_is_overtaken_gets_the_classifier_that_took_the_last_place(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, made_by, first = make_engine(max_classifiers=1), TenantStore.made_by, list[Adapted]()
    requests = iter(["repeat"])

    def overtaken(store: TenantStore, key: IdempotencyKey) -> tuple[str, tuple[Rejected, ...]] | None:
        found = made_by(store, key)
        if next(requests, None):
            first.append(adapt(engine))
        return found

    monkeypatch.setattr(TenantStore, "made_by", overtaken)
    repeated = adapt(engine)
    assert (first[0].replayed, repeated.replayed) == (False, True)
    assert repeated.classifier.id == first[0].classifier.id
    fails(ErrorCode.TOO_MANY_CLASSIFIERS, lambda: adapt(engine, key="other"))


@pytest.mark.parametrize("name", [None, "letters"])
def test_examples_are_added_once(engine: Engine, name: str | None) -> None:
    made = engine.adapt(SUPPORT, NewClassifier(name=name)).classifier
    reference = name or made.id
    more = [(image_bytes(), "more")]
    done = at_once(lambda key: engine.add_examples(reference, more, Caller(idempotency_key=key)), [KEY] * 4)
    assert [item.replayed for item in done].count(False) == 1
    assert len({item.classifier.id for item in done}) == 1
    assert len(engine.classifiers.of().support(reference)[1]) == 4
    for other in (
        lambda: engine.add_examples(reference, more, Caller(idempotency_key=KEY), promote=False),
        lambda: engine.add_examples("letters@9", more, Caller(idempotency_key=KEY)),
        lambda: engine.adapt(more, caller=Caller(idempotency_key=KEY)),
    ):
        fails(ErrorCode.IDEMPOTENCY_MISMATCH, other)


LABELS = {"red": "Red", "blue": "Blue"}


@pytest.mark.parametrize(
    ("change", "same", "others"),
    [
        (AdaptAgain(7.0), AdaptAgain(7.0), [AdaptAgain(8.0), AdaptAgain()]),
        # Labels in another order are the same request, which is answered although no class has them any more.
        (
            RenameClasses(LABELS),
            RenameClasses(dict(reversed(LABELS.items()))),
            [RenameClasses({"red": "Red"}), RenameClasses({**LABELS, "red": "blue"}), AdaptAgain()],
        ),
    ],
    ids=["adapt again", "rename"],
)
def test_a_change_happens_once(engine: Engine, change: Change, same: Change, others: list[Change]) -> None:
    engine.adapt(SUPPORT, NewClassifier(name="letters"))
    caller = Caller(idempotency_key=KEY)
    first, repeated = (engine.change("letters", one, caller) for one in (change, same))
    assert (first.replayed, repeated.replayed) == (False, True)
    assert repeated.classifier.id == first.classifier.id == engine.classifiers.find("letters@2").id
    for other in others:
        fails(ErrorCode.IDEMPOTENCY_MISMATCH, lambda other=other: engine.change("letters", other, caller))
    fails(ErrorCode.IDEMPOTENCY_MISMATCH, lambda: engine.change("letters@1", change, caller))
    fails(ErrorCode.IDEMPOTENCY_MISMATCH, lambda: engine.change("letters", change, caller, promote=False))
    assert engine.store.count() == 2


def test_a_deleted_classifier_is_not_made_again_by_its_key(engine: Engine) -> None:
    """The repeated request may have been long on its way."""
    made = adapt(engine).classifier
    engine.classifiers.delete(made.id)
    error = fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: adapt(engine))
    assert error.detail == {"received": made.id}
    assert "Send a new key" in error.message
    assert engine.store.count() == 0


def test_a_key_is_forgotten_after_its_time(database_url: str) -> None:
    now = datetime(2026, 11, 20, tzinfo=UTC)
    with closing(Store(database_url, clock=lambda: now)) as store:
        mine = store.for_tenant("")

        def key(text: str = KEY, of: str = "1", rejected: tuple[Rejected, ...] = ()) -> IdempotencyKey:
            return IdempotencyKey(text, of, now + timedelta(hours=24), rejected)

        add(mine, "clf_a", key=key())
        assert mine.made_by(key()) == ("clf_a", ())
        with pytest.raises(KeyTakenError):
            add(mine, "clf_b", key=key())
        fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: mine.find("clf_b"))
        fails(ErrorCode.IDEMPOTENCY_MISMATCH, lambda: mine.made_by(key(of="2")))
        now += timedelta(hours=24)
        assert mine.made_by(key(of="2")) is None
        rejected = (Rejected(1, ErrorCode.INVALID_IMAGE, "The image is none.", {}),)
        add(mine, "clf_c", key=key(of="2", rejected=rejected))
        assert mine.made_by(key(of="2")) == ("clf_c", rejected)
        store.purge()
        assert mine.made_by(key(of="2")) == ("clf_c", rejected), "it is new again"
        assert store.count() == 2
