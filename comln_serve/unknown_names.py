"""Says of names that do not exist which ones do, the nearest first."""

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches

from comln_serve.errors import StartupError


def refuse_unknown(
    words: Mapping[str, str], kind: str, known: Collection[str], spelled: Callable[[str], str] = str
) -> None:
    """Refuse names that no setting has. Their values, which may be passwords, are not shown.

    Args:
        words: what the user wrote, to the name in it; `spelled` makes such a word of a known name.

    Raises:
        StartupError: there are any; names the nearest known ones, or else all.
    """
    problems = [f"{word}: {no_such(name, kind, known, spelled)}" for word, name in words.items()]
    if problems:
        raise StartupError("; ".join(problems))


def no_such(name: str, kind: str, known: Collection[str], spelled: Callable[[str], str] = str) -> str:
    """That there is no such setting, key or the like, and the nearest known ones, or else all."""
    near = get_close_matches(name, known)
    names = ", ".join(map(spelled, near or known))
    return f"there is no such {kind}; {'the nearest are' if near else 'allowed are'} {names}"
