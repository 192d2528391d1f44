"""A line in which tenants take turns, and the requests of each tenant."""

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

_Member = TypeVar("_Member")


class Turns(Generic[_Member]):
    """Members of groups that wait. The groups take turns, whatever the number of their members; the members of a group
    take turns among themselves. Not thread-safe.
    """

    def __init__(self) -> None:
        """Nobody waits."""
        self._groups: dict[Hashable, deque[_Member]] = {}  # in the order of their turns

    def __bool__(self) -> bool:
        return bool(self._groups)

    def members(self, group: Hashable) -> Sequence[_Member]:
        """Those of a group that wait."""
        return self._groups.get(group, ())

    def add(self, group: Hashable, member: _Member) -> None:
        """Let a member wait, behind the others of its group; the group behind the other groups, if it is new."""
        self._groups.setdefault(group, deque()).append(member)

    @property
    def first(self) -> _Member:
        """Whose turn it is. Somebody has to wait."""
        return next(iter(self._groups.values()))[0]

    def take(self) -> _Member:
        """Remove and return the first; it is the turn of the next group then."""
        group, members = next(iter(self._groups.items()))
        del self._groups[group]
        member = members.popleft()
        if members:
            self._groups[group] = members
        return member

    def remove(self, group: Hashable, member: _Member) -> bool:
        """Remove a member wherever it is. Returns whether it waited."""
        members = self._groups.get(group)
        if members is None or member not in members:
            return False
        members.remove(member)
        if not members:
            del self._groups[group]
        return True
