"""Images that a request goes on without."""

from collections.abc import Mapping, Sequence
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


def without(items: Sequence[_Item], rejected: Sequence[Rejected]) -> list[_Item]:
    """The items of a request's images, those of rejected images left out."""
    left_out = {one.index for one in rejected}
    return [item for index, item in enumerate(items) if index not in left_out]
