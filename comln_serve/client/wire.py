"""Converts between JSON and the dataclasses of `results`."""

import dataclasses
import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

_T = TypeVar("_T")


def parse(kind: type[_T], value: Any) -> _T:
    """Build a dataclass from a JSON object. Fields that it does not have are ignored: newer servers send more. Raises
    ValueError if a field is missing or of another type.
    """
    return cast("_T", _parse(kind, value, kind.__name__))


def to_json(value: Any) -> str:
    """The JSON text of a dataclass, or of a container of some."""
    return json.dumps(value, default=_of_object, ensure_ascii=False, indent=2)


def _of_object(value: object) -> Any:
    return value.isoformat() if isinstance(value, datetime) else vars(value)


def _parse(kind: Any, value: Any, where: str) -> Any:
    if type(value) is kind:  # as most are: texts and numbers
        return value
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        items = enumerate(_expect(list, value, where))
        found = tuple(_parse(inner[0], item, f"{where}.{position}") for position, item in items)
    elif origin is Mapping:
        items = _expect(dict, value, where).items()
        found = {key: _parse(inner[1], item, f"{where}.{key}") for key, item in items}
    elif value is None and NoneType in inner:
        found = None
    elif inner:  # a union; the only one of two values is that of a number and a list of numbers
        others = [one for one in inner if one is not NoneType]
        found = _parse(others[-1 if isinstance(value, list) else 0], value, where)
    elif dataclasses.is_dataclass(kind):
        found = _parse_object(cast("type[Any]", kind), value, where)
    elif kind is datetime:
        found = datetime.fromisoformat(_expect(str, value, where))
    elif kind is float and type(value) is int:
        found = float(value)
    else:
        found = value if kind is Any else _expect(kind, value, where)
    return found


def _parse_object(kind: type[Any], value: Any, where: str) -> Any:
    given = _expect(dict, value, where)
    found: dict[str, Any] = {}
    for item, annotation in _fields(kind):
        if item.name in given:
            found[item.name] = _parse(annotation, given[item.name], f"{where}.{item.name}")
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where} has no {item.name!r}")
    return kind(**found)


def _expect(kind: type[Any], value: Any, where: str) -> Any:
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ValueError(f"{where} is {type(value).__name__}, not {kind.__name__}")
    return value


@cache
def _fields(kind: type[Any]) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = get_type_hints(kind)
    return [(item, hints[item.name]) for item in dataclasses.fields(kind)]
