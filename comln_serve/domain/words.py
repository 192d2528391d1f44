"""Lists in messages and notes."""

from collections.abc import Sequence

MOST_NAMED = 10


def listed(items: Sequence[str], separator: str = ", ") -> str:
    """The first items, and how many more there are."""
    more = f" and {len(items) - MOST_NAMED} more" if len(items) > MOST_NAMED else ""
    return separator.join(items[:MOST_NAMED]) + more
