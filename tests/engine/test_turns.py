"""Groups take turns, and the members of each."""

from comln_serve.turns import Turns


def waiting(*pairs: str) -> Turns[str]:
    """Turns of members such as `a1`, of group `a`."""
    turns = Turns[str]()
    for member in pairs:
        turns.add(member[0], member)
    return turns


def test_groups_take_turns_and_members_in_their_order() -> None:
    turns = waiting("a1", "a2", "a3", "b1", "a4", "c1", "c2")
    order: list[str] = []
    while turns:
        first = turns.first
        order.append(turns.take())
        assert order[-1] == first
    assert order == ["a1", "b1", "c1", "a2", "c2", "a3", "a4"]


def test_what_goes_on_waiting_is_behind_its_group_and_that_behind_the_others() -> None:
    turns = waiting("a1", "a2", "b1")
    order: list[str] = []
    for _ in range(7):
        order.append(taken := turns.take())
        turns.add(taken[0], taken)
    assert order == ["a1", "b1", "a2", "b1", "a1", "b1", "a2"]


def test_members_leave_wherever_they_are() -> None:
    turns = waiting("a1", "b1", "b2")
    assert turns.remove("b", "b1")
    assert not turns.remove("b", "b1")
    assert turns.remove("a", "a1")
    assert not turns.remove("a", "a1")
    assert turns.take() == "b2"
    assert not turns
