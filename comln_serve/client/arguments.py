"""Checks of arguments that would otherwise fail inside the client, or mean something else on the server."""

from collections.abc import Mapping
from contextlib import suppress
from numbers import Integral, Real
from typing import TypeVar, cast

from comln_serve.client.errors import InputError

_Key = TypeVar("_Key", str, int)


def checked_texts(what: str, given: Mapping[_Key, str], example: str, *, empty: bool = False) -> dict[_Key, str]:
    """Check an argument that has to be a mapping to texts. Returns it as a dictionary.

    Args:
        what: name of the argument, for the error.
        example: a value to show in the error.
        empty: whether the mapping may be empty.

    Raises:
        InputError: it is no such mapping.
    """
    if not isinstance(cast("object", given), Mapping) or not (given or empty):
        raise InputError(f"{what} is {given!r}; give a dictionary such as {example}")
    found = dict(given)
    for key, text in found.items():
        if not isinstance(cast("object", text), str):
            raise InputError(f"{what} has {text!r} for {key!r}; give a text, as in {example}")
    return found


def checked_metadata(given: Mapping[str, str]) -> dict[str, str]:
    """Check the argument `metadata`. Raises InputError if it is no mapping of texts to texts."""
    return checked_texts("metadata", given, '{"line": "3"}', empty=True)


def checked_side(given: int | None) -> int | None:
    """Check the argument `max_side`. Raises InputError if it is neither a number of pixels nor None."""
    if given is None or (isinstance(given, Integral) and given is not True and given > 0):
        return given
    raise InputError(f"max_side is {given!r}; give a number of pixels, from 1 on, or None")


def checked_seconds(what: str, given: float, *, zero: bool) -> float:
    """Check the argument `what`, in seconds. Raises InputError if it is not over 0, nor 0 where `zero` allows that."""
    # NumPy's numbers are real ones, too.
    is_number = isinstance(cast("object", given), Real) and not isinstance(cast("object", given), bool)
    if not (is_number and (given >= 0 if zero else given > 0)):
        raise InputError(f"{what} is {given!r}; give seconds, {'from 0 on' if zero else 'more than 0'}")
    return float(given)


def checked_lifetime(given: float | None) -> int | None:
    """Check the argument `expires_in_seconds`. Raises InputError if it is neither whole seconds nor None."""
    if given is None:
        return None
    whole = None
    if isinstance(cast("object", given), Real) and not isinstance(given, bool):
        with suppress(OverflowError, ValueError):  # infinity, NaN
            whole = int(given)
    if whole is None or whole != given:
        raise InputError(f"expires_in_seconds is {given!r}; give whole seconds, from 1 on, or None")
    return whole
