"""A request to the server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Request:
    """A request to the server.

    Attributes:
        parameters: of the query; one with several values is repeated, one of None is not sent.
        fields: of a form.
        images: image files of the form.
        content: of a JSON body, where there is no form.
        file: the body as it is, where there is neither.
        repeatable: sending it twice has the effect of sending it once.
    """

    method: str
    path: str
    parameters: Mapping[str, str | bool | int | Sequence[int] | None] = field(default_factory=dict[str, Any])
    fields: Mapping[str, str | bool | Sequence[str]] | None = None
    images: Sequence[bytes] = ()
    content: Mapping[str, Any] | None = None
    file: bytes | None = None
    headers: Mapping[str, str] | None = None
    repeatable: bool = True

    def arguments(self) -> dict[str, Any]:
        """The arguments of `request` of an HTTP client."""
        return {
            "method": self.method,
            "url": self.path,
            "params": {name: value for name, value in self.parameters.items() if value is not None},
            "data": self.fields,
            "files": [("images", ("image", data)) for data in self.images],
            "json": self.content,
            "content": self.file,
            "headers": self.headers,
        }
