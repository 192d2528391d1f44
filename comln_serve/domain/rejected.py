"""Images that a request goes on without."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from comln_serve.errors import ErrorCode

_Item = TypeVar("_Item")


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

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Rejected":
        """What `facts` were taken from."""
        return cls(facts["index"], ErrorCode(facts["code"]), facts["message"], facts["detail"])


def together(rejected: Sequence[Rejected]) -> list[dict[str, Any]]:
    """The facts as JSON values, once for all images of which the same is said, with their `indices`.

    A small request may have hundreds of bad images, and what is said of each is longer than the image.
    """
    groups: dict[str, dict[str, Any]] = {}
    for one in rejected:
        facts = one.facts()
        index = facts.pop("index")
        groups.setdefault(json.dumps(facts), {"indices": [], **facts})["indices"].append(index)
    return list(groups.values())


def apart(groups: Iterable[Mapping[str, Any]]) -> tuple[Rejected, ...]:
    """What `together` was given, in the order of the images. Older rows have each with its `index`."""
    found = [
        Rejected.of({**facts, "index": index}) for facts in groups for index in facts.get("indices") or [facts["index"]]
    ]
    return tuple(sorted(found, key=lambda one: one.index))


def without(items: Sequence[_Item], rejected: Sequence[Rejected]) -> list[_Item]:
    """The items of a request's images, those of rejected images left out."""
    left_out = {one.index for one in rejected}
    return [item for index, item in enumerate(items) if index not in left_out]
