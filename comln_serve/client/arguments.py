"""Checks of arguments that would otherwise fail inside the client, or mean something else on the server."""

import math
from collections.abc import Mapping
from contextlib import suppress
from numbers import Integral, Real
from typing import Literal, TypeAlias, TypeVar, cast

from comln_serve.client.errors import InputError

_Key = TypeVar("_Key", str, int)
Horizon: TypeAlias = float | Literal["learned", "auto"] | None


def checked_texts(what: str, given: Mapping[_Key, str], example: str, *, empty: bool = False) -> dict[_Key, str]:
    """Check the argument `what`, which has to be a mapping to texts, and not `empty` unless that is allowed. Returns it
    as a dictionary. Raises InputError with an example if it is no such mapping.
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
    if not (_is_number(given) and (given >= 0 if zero else given > 0)):
        raise InputError(f"{what} is {given!r}; give seconds, {'from 0 on' if zero else 'more than 0'}")
    return float(given)


def checked_lifetime(given: float | None) -> int | None:
    """Check the argument `expires_in_seconds`. Raises InputError if it is neither whole seconds nor None."""
    if given is None:
        return None
    whole = None
    if _is_number(given):
        with suppress(OverflowError, ValueError):  # infinity, NaN
            whole = int(given)
    if whole is None or whole != given:
        raise InputError(f"expires_in_seconds is {given!r}; give whole seconds, from 1 on, or None")
    return whole


def checked_horizon(given: Horizon) -> Horizon:
    """Check the argument `horizon`. Returns a number as a float. Raises InputError if it is no horizon."""
    if given is None or (isinstance(given, str) and given in ("learned", "auto")):
        return given
    if not isinstance(given, str) and _is_number(given) and 0.0 < float(given) < math.inf:
        return float(given)
    raise InputError(f"horizon is {given!r}; give a number over 0, 'learned' or 'auto'")


def _is_number(given: object) -> bool:
    return not isinstance(given, bool) and isinstance(given, Real)  # NumPy's numbers are real ones, too
