"""References to classifiers: by id, by name, or by name and version.

`clf_...` is an id of exactly one classifier. `letters` is a name and stands for its promoted
version; `letters@3` is version 3 of that name.
"""

import re
import uuid
from dataclasses import dataclass

ID_PREFIX = "clf_"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
NAME_PATTERN = rf"^{_NAME}$"

_REFERENCE = re.compile(rf"({_NAME})(?:@([1-9][0-9]{{0,8}}))?")


@dataclass(frozen=True)
class Reference:
    """A parsed reference: an `id`, or a `name` with or without a `version`."""

    id: str | None = None
    name: str | None = None
    version: int | None = None


def new_id() -> str:
    """An id that no classifier has yet."""
    return ID_PREFIX + uuid.uuid4().hex


def parse_reference(text: str) -> Reference | None:
    """Parse `id`, `name` or `name@version`; None if the text is none of them."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        return None
    name, version = found.groups()
    if name.startswith(ID_PREFIX):
        return Reference(id=name) if version is None else None
    return Reference(name=name, version=None if version is None else int(version))
