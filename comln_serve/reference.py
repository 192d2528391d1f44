"""How a classifier is referred to: by id, by name, or by name and version.

`clf_...` is an id and names exactly one classifier. `letters` is a name and stands for whichever
of its versions is promoted; `letters@3` is version 3 of it.
"""

import re
from dataclasses import dataclass

ID_PREFIX = "clf_"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

_REFERENCE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})(?:@([1-9][0-9]{0,8}))?")


@dataclass(frozen=True)
class Reference:
    """What a caller referred to: an `id`, or a `name` and perhaps one `version` of it."""

    id: str | None = None
    name: str | None = None
    version: int | None = None


def parse_reference(text: str) -> Reference | None:
    """The reference a text is; None where it can be none, so that nothing goes by it."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        return None
    name, version = found.groups()
    if name.startswith(ID_PREFIX):
        return Reference(id=name) if version is None else None
    return Reference(name=name, version=None if version is None else int(version))
