"""Images that a request goes on without."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from comln_serve.errors import ErrorCode

_Item = TypeVar("_Item")

# Bytes of JSON with facts about images that are stored with an idempotency key.
_MOST_SAID = 16_000

_TOO_MUCH = "This image cannot be used. The first answer to the request with this Idempotency-Key says why."


@dataclass(frozen=True)
class Rejected:
    """An image that cannot be used, in a request that goes on with its others.

    Attributes:
        index: position in the request, from 0.
        code, message, detail: as of a `ServiceError`.
    """

    index: int
    code: ErrorCode
    message: str
    detail: Mapping[str, Any]

    def facts(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {"index": self.index, "code": self.code.value, "message": self.message, "detail": dict(self.detail)}


def together(rejected: Sequence[Rejected]) -> list[dict[str, Any]]:
    """The facts as JSON values: one entry, with their `indices`, for all images that have the same.

    A small request may have hundreds of bad images, and facts that are longer than each image. Beyond 16 kB, only the
    codes of the other images are kept.
    """
    groups: dict[str, dict[str, Any]] = {}
    size = 0
    for one in rejected:
        facts = one.facts()
        index = facts.pop("index")
        said = json.dumps(facts)
        if said not in groups and size + len(said) > _MOST_SAID:
            facts |= {"message": _TOO_MUCH, "detail": {}}
            said = json.dumps(facts)  # one for each code
        group = groups.get(said)
        if group is None:
            group = groups[said] = {"indices": [], **facts}
            size += len(said)
        group["indices"].append(index)
    return list(groups.values())


def apart(groups: Iterable[Mapping[str, Any]]) -> tuple[Rejected, ...]:
    """What `together` was given, in the order of the images. Older rows have each with its `index`."""
    found = [
        Rejected(index, ErrorCode(facts["code"]), facts["message"], facts["detail"])
        for facts in groups
        for index in facts.get("indices") or [facts["index"]]
    ]
    return tuple(sorted(found, key=lambda one: one.index))


def without(items: Sequence[_Item], rejected: Sequence[Rejected]) -> list[_Item]:
    """The items of a request's images, those of rejected images left out."""
    left_out = {one.index for one in rejected}
    return [item for index, item in enumerate(items) if index not in left_out]
