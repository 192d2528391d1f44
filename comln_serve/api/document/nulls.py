"""Schemas of fields that are left out where they have no value, so that they are never null."""

from collections.abc import Mapping
from typing import Any


def without_null(field: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a field that may be null, as that of one that may only be left out."""
    if "anyOf" not in field:
        return dict(field)
    kinds = [kind for kind in field["anyOf"] if kind.get("type") != "null"]
    rest = {key: value for key, value in field.items() if key not in ("anyOf", "default")}
    return {**kinds[0], **rest} if len(kinds) == 1 else {**rest, "anyOf": kinds}
