"""Versions of a name: how they are numbered, and which of them the name stands for."""

import uuid

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from comln_serve.engine.classifiers.catalogue import References
from comln_serve.engine.engine import Engine, NewClassifier
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.storage import Edit, Store, TenantStore
from tests.support.classifiers import add
from tests.support.engines import fails, predict
from tests.support.image_files import colour_support, image_bytes
from tests.support.waiting import at_once

NAME = "letters"


class Versions(RuleBasedStateMachine):
    """The store beside a list: the versions that are there, and the promoted ones, latest last."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.mine = self.store.for_tenant(uuid.uuid4().hex)
        self.ids: dict[int, str] = {}
        self.there: list[int] = []
        self.promoted: list[int] = []
        self.given = 0

    @property
    def current(self) -> int | None:
        """What the name should stand for."""
        return (self.promoted or self.there or [None])[-1]

    def promote_in_model(self, version: int) -> None:
        self.promoted = [*(v for v in self.promoted if v != version), version]

    @rule(promote=st.booleans())
    def adapt(self, promote: bool) -> None:
        self.given += 1
        made = add(self.mine, f"clf_{uuid.uuid4().hex}", NAME, promote=promote)
        if not promote and self.there and not self.promoted:
            self.promote_in_model(self.there[-1])
        expected = promote or not self.there
        if expected:
            self.promote_in_model(self.given)
        assert (made.version, made.promoted) == (self.given, expected)
        self.there.append(self.given)
        self.ids[self.given] = made.id

    @precondition(lambda self: self.there)
    @rule(data=st.data(), by_id=st.booleans())
    def promote(self, data: st.DataObject, by_id: bool) -> None:
        version = data.draw(st.sampled_from(self.there))
        done = self.mine.promote(self.ids[version] if by_id else f"{NAME}@{version}")
        assert (done.version, done.promoted) == (version, True)
        self.promote_in_model(version)

    @rule()
    def roll_back(self) -> None:
        if not self.there:
            fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: self.mine.roll_back(NAME))
        elif len(self.promoted) < 2:
            fails(ErrorCode.NOTHING_TO_ROLL_BACK_TO, lambda: self.mine.roll_back(NAME))
        else:
            self.promoted.pop()
            done = self.mine.roll_back(NAME)
            assert (done.version, done.promoted) == (self.promoted[-1], True)

    @precondition(lambda self: self.there)
    @rule(data=st.data(), how=st.sampled_from(["name", "version", "id"]))
    def delete(self, data: st.DataObject, how: str) -> None:
        version = data.draw(st.sampled_from(self.there)) if how != "name" else self.current
        assert version is not None
        reference = {"name": NAME, "version": f"{NAME}@{version}", "id": self.ids[version]}[how]
        deleted = self.mine.delete(reference)
        assert deleted.id == self.ids[version]
        self.there.remove(version)
        self.promoted = [v for v in self.promoted if v != version]

    @invariant()
    def the_name_stands_for_what_it_should(self) -> None:
        found = self.mine.resolve(NAME)
        assert (found and found.id) == (None if self.current is None else self.ids[self.current])
        page, _ = self.mine.page(limit=1000, name=NAME)
        assert [(item.version, item.promoted) for item in page] == [
            (version, version == self.current) for version in reversed(self.there)
        ]
        assert all(self.mine.resolve(f"{NAME}@{version}") for version in self.there)


def test_a_name_stands_for_what_a_list_says(store: Store) -> None:
    run_state_machine_as_test(
        type("Machine", (Versions,), {"store": store}),
        settings=settings(
            max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )


def test_a_name_stays_with_the_version_that_it_fell_back_to(mine: TenantStore) -> None:
    """The promoted one is gone, so it stands for the newest of the others; not for one that is added, but not promoted,
    after that.
    """
    add(mine, "clf_1", NAME)
    add(mine, "clf_2", NAME, promote=False)
    mine.delete("clf_1")
    assert mine.find(NAME).id == "clf_2"
    assert not add(mine, "clf_3", NAME, promote=False).promoted
    assert mine.find(NAME).id == "clf_2"


def test_threads_that_adapt_under_one_name_get_every_number_once(mine: TenantStore) -> None:
    versions = at_once(lambda thread: add(mine, f"clf_{thread}", NAME).version or 0, range(20))
    assert sorted(versions) == list(range(1, 21))
    promoted = [item.version for item in mine.page(limit=50)[0] if item.promoted]
    assert promoted == [20]


def test_of_threads_that_promote_instead_of_one_version_one_does(mine: TenantStore) -> None:
    before = add(mine, "clf_before", NAME)
    for thread in range(12):
        add(mine, f"clf_{thread}", NAME, promote=False)

    def work(thread: int) -> ErrorCode | None:
        try:
            mine.promote(f"clf_{thread}", instead_of=before.id)
        except ServiceError as error:
            return error.code
        return None

    done = at_once(work, range(12))
    assert sorted(map(str, done)) == [str(None)] + [str(ErrorCode.NAME_MOVED)] * 11
    assert mine.describe(NAME).id == f"clf_{done.index(None)}"


def test_threads_that_roll_back_each_take_back_one_promotion(mine: TenantStore) -> None:
    for number in range(1, 13):
        add(mine, f"clf_{number}", NAME)
    found = at_once(lambda _: mine.roll_back(NAME).version or 0, range(8))
    assert sorted(found) == [4, 5, 6, 7, 8, 9, 10, 11]
    assert mine.describe(NAME).version == 4


def test_names_are_changed_while_others_change_them(mine: TenantStore) -> None:
    """Nobody waits for somebody who waits for them, and no number is given twice."""
    names = ("a", "b", "c")
    for name in names:
        add(mine, f"clf_{name}", name)

    def work(thread: int) -> None:
        for turn in range(12):
            old, new = names[(thread + turn) % 3], names[(thread + 2 * turn + 1) % 3]
            try:
                if thread % 3 == 0:
                    mine.edit(old, Edit(name=new))
                elif thread % 3 == 1:
                    mine.promote(old)
                    mine.edit(add(mine, f"clf_{thread}_{turn}").id, Edit(name=old))
                else:
                    mine.edit(old, Edit(metadata={"by": str(thread)}))
                    mine.roll_back(old)
            except ServiceError as error:
                expected = (ErrorCode.NAME_TAKEN, ErrorCode.CLASSIFIER_NOT_FOUND, ErrorCode.NOTHING_TO_ROLL_BACK_TO)
                if error.code not in expected:
                    raise

    at_once(work, range(12))
    page = mine.page(limit=500)[0]
    assert len({(item.name, item.version) for item in page}) == len(page) > len(names)
    for name in {item.name for item in page}:
        assert name is None or sum(item.promoted for item in page if item.name == name) == 1


def test_what_has_no_name_has_no_versions(mine: TenantStore) -> None:
    add(mine, "clf_a")
    add(mine, "clf_b", NAME)
    error = fails(ErrorCode.INVALID_REQUEST, lambda: mine.promote("clf_a"))
    assert "has no name" in error.message
    for reference in ("clf_b", f"{NAME}@1"):
        fails(ErrorCode.INVALID_REQUEST, lambda reference=reference: mine.roll_back(reference))


def test_two_servers_see_each_others_promotions(
    servers: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(References, "seconds", 0.0)  # they have passed
    one, other = servers

    def answers(engine: Engine, reference: str = NAME) -> int | None:
        return predict(engine, [image_bytes()], reference).classifier.version

    for shots in (1, 2, 3):
        one.adapt(colour_support(shots), NewClassifier(name=NAME, promote=shots != 2))
        assert answers(other) == answers(one) == {1: 1, 2: 1, 3: 3}[shots]
    assert [answers(other, f"{NAME}@{version}") for version in (1, 2, 3)] == [1, 2, 3]
    with one.changing() as store:
        assert store.promote(f"{NAME}@2").promoted
    assert answers(other) == 2
    with other.changing() as store:
        assert store.roll_back(NAME).version == 3
    assert answers(one) == 3
    assert one.classifiers.of().describe(f"{NAME}@3").promoted
    third = one.classifiers.find(NAME).id
    assert answers(other, third) == 3
    one.classifiers.delete(NAME)
    assert answers(other) == 1
    fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: answers(other, third))
    fails(ErrorCode.CLASSIFIER_NOT_FOUND, lambda: answers(other, f"{NAME}@3"))
    with other.changing() as store:
        fails(ErrorCode.NOTHING_TO_ROLL_BACK_TO, lambda: store.roll_back(NAME))
    assert other.adapt(colour_support(), NewClassifier(name=NAME)).classifier.version == 4
