"""The order in which images of several classes are sent."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TypeVar

_T = TypeVar("_T")


def in_turns(groups: Iterable[Sequence[_T]]) -> list[_T]:
    """The first of every group, then the second of every group, and so on: however few come first, they are of as many
    groups as possible.
    """
    return [one for row in zip_longest(*groups) for one in row if one is not None]
